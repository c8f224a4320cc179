"""Choosing the ridge strength from statistics alone, by cross-validation.

Each member's calibration is split into K ≥ 2 folds (of documents or windows, never of neighbouring tokens), with
statistics of each. For every fold k the router is solved from the others, and its squared error on the fold needs no
token, only the fold's own statistics (Hastie, Tibshirani & Friedman 2009, *The Elements of Statistical Learning*,
§7.10; the quadratic form is that of DUME eq. 6):

    W_k(lam) = (Σ_e ω_e A_{e,−k} + lam·I)⁻¹ S_−k = Q (Λ + lam)⁻¹ Qᵀ S_−k                          (H, E)
    error_k  = tr(Wᵀ A_k W) − 2 tr(Wᵀ S_k) + n_k          A_k = Σ_e ω_e A_ek, S_k = [ω_e s_ek], n_k = Σ_e ω_e n_ek

One eigendecomposition a fold serves all values of `lam`: 0.9 s a layer at H = 1,024, E = 5 and K = 2 on one core.

The strength chosen is that of least error, not of highest predicted accuracy. *Measured* (Llama, H = 256, three and
five experts, 4,096 tokens a fold): both are flat from 1e-9 of the mean diagonal to 1e-4 in the first layer and 1e-2 in
the others, and fall behind beyond. On that plateau the error has one smooth minimum, while accuracies differ by 1e-5,
far less than the Gaussian model is off by.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.confusion import chosen, sample
from registry.maths.fixed_point import power_of_two
from registry.maths.statistics import Statistics
from registry.maths.threads import one_thread

DECADES = range(-9, 4)
"""Of the default grid, about the mean diagonal of the summed Gram: below, rounding shows in a Gram of 10³ channels;
above, W is that of mean features, (1/lam) S."""


@dataclass(frozen=True)
class LamCurve:
    """Held-out error and accuracy of routers by ridge strength.

    Attributes:
        lams: ridge strengths, absolute, ascending.
        errors: ‖Wᵀx − 1_e‖² a token, weighted by ω; 0 is perfect, 1 is what W = 0 has.
        accuracies: the share of tokens predicted to go to their own expert (top-1; `predicted_confusion`), averaged
            over experts and folds.
    """

    lams: tuple[float, ...]
    errors: tuple[float, ...]
    accuracies: tuple[float, ...]

    @property
    def best(self) -> float:
        """The strength of the least error, the larger of two equal ones."""
        return -min(zip(self.errors, (-lam for lam in self.lams), strict=True))[1]

    def document(self) -> dict[str, Any]:
        """Return the curve as plain floats and lists."""
        return {
            "lams": list(self.lams),
            "errors": list(self.errors),
            "accuracies": list(self.accuracies),
            "best": self.best,
        }


def lam_curve(
    folds: Sequence[Sequence[Statistics]],
    weights: Sequence[float],
    grid: Sequence[float] | None = None,
    normalize: bool = True,
) -> LamCurve:
    """Return the held-out error and predicted accuracy of each `lam` at one layer.

    A pure function, on one thread. Another order of members changes nothing but rounding.

    Args:
        folds: `folds[e][k]` are the statistics of member e and fold k; those of one member share scales.
        weights: ω_e > 0, one a member.
        grid: strengths > 0, absolute; None for `lam_grid` of the sum over all members and folds.
        normalize: accuracies are those of unit-norm columns. Errors are those of W as it is solved.

    Raises:
        ValueError: there are fewer than two folds, members differ in their number, a fold has no tokens, a strength is
            not positive and finite, or a router column is zero.
    """
    number = _check(folds, weights)
    with one_thread():
        if grid is None:
            grid = lam_grid(sum(_mean_diagonal(fold) * w for f, w in zip(folds, weights, strict=True) for fold in f))
        lams = sorted({float(lam) for lam in grid})
        if not lams or not all(math.isfinite(lam) and lam > 0 for lam in lams):
            raise ValueError("every lam of the grid must be finite and more than 0")
        errors, accuracies = torch.zeros(2, len(lams), dtype=torch.float64)
        points = sample(len(folds))
        for k in range(number):
            columns = _solutions(folds, weights, k, lams)
            norms = columns.norm(dim=0) if normalize else torch.ones(columns.shape[1:], dtype=torch.float64)
            if not bool((norms > 0).all()):
                raise ValueError("a router column is zero")
            for e, (member, weight) in enumerate(zip(folds, weights, strict=True)):
                held, flat = member[k], columns.flatten(1)
                mean = (held.moment @ flat).view_as(norms)  # Wᵀ s
                square = torch.einsum("hli,hlj->lij", columns, (held.gram @ flat).view_as(columns))  # Wᵀ A W
                traces = square.diagonal(dim1=1, dim2=2).sum(dim=1)
                errors += weight * (traces - 2 * mean[:, e] + held.count)
                mean = mean / norms / held.count
                square = square / (norms[:, :, None] * norms[:, None, :]) / held.count
                for at in range(len(lams)):
                    covariance = square[at] - torch.outer(mean[at], mean[at])
                    accuracies[at] += chosen(mean[at], covariance, points, [e])[0]
    tokens = sum(fold.count * weight for member, weight in zip(folds, weights, strict=True) for fold in member)
    return LamCurve(
        tuple(lams), tuple((errors / tokens).tolist()), tuple((accuracies / (number * len(folds))).tolist())
    )


def lam_grid(mean_diagonal: float) -> tuple[float, ...]:
    """Return the default strengths: powers of ten from 1e-9 to 1e3 times the mean diagonal, its power of ten rounded.

    Powers of ten are the same in all layers, and no rounding of the Gram moves them.

    Raises:
        ValueError: the mean diagonal is not positive and finite.
    """
    if not (math.isfinite(mean_diagonal) and mean_diagonal > 0):
        raise ValueError(f"the mean diagonal of the summed Gram is {mean_diagonal:g}")
    centre = round(math.log10(mean_diagonal))
    return tuple(float(f"1e{centre + decade}") for decade in DECADES)


def _check(folds: Sequence[Sequence[Statistics]], weights: Sequence[float]) -> int:
    """Return K."""
    if not folds or len(folds) != len(weights):
        raise ValueError(f"{len(weights)} weights do not go with {len(folds)} members")
    numbers = {len(member) for member in folds}
    if len(numbers) > 1 or min(numbers) < 2:
        raise ValueError(f"members have {', '.join(map(str, sorted(numbers)))} folds: all need the same, 2 or more")
    if any(fold.count < 1 for member in folds for fold in member):
        raise ValueError("a fold has no tokens")
    return numbers.pop()


def _solutions(
    folds: Sequence[Sequence[Statistics]], weights: Sequence[float], k: int, lams: Sequence[float]
) -> Float[Tensor, "H L E"]:
    """Return W_k of every strength, solved from all folds but k."""
    gram, moments = None, []
    for member, weight in zip(folds, weights, strict=True):
        rest = reduce(Statistics.__add__, (fold for j, fold in enumerate(member) if j != k))
        gram = rest.gram.mul_(weight) if gram is None else gram.add_(rest.gram, alpha=weight)
        moments.append(rest.moment * weight)
    values, vectors = torch.linalg.eigh(gram)
    shrunk = values.clamp(min=0)[:, None] + torch.tensor(lams, dtype=torch.float64)  # (H, L)
    projected = vectors.T @ torch.stack(moments, dim=1)
    columns: Tensor = vectors @ (projected[:, None, :] / shrunk[:, :, None]).flatten(1)
    return columns.view(len(vectors), len(lams), len(folds))


def _mean_diagonal(statistics: Statistics) -> float:
    squares = statistics.matrix.diagonal()[:-1].double() * power_of_two(-statistics.exponents).square()
    return float(squares.mean())
