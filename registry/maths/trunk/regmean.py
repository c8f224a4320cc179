"""RegMean: each linear map such that, on every member's inputs, it gives what that member gives (Jin et al. 2022, §3).

    W = (Σ_e ω_e Ĝ_e + r I)⁻¹ (Σ_e ω_e Ĝ_e W_e + r W̄)        Ĝ = α G + (1 − α) diag(G)          (Jin eq. 2, §3.3)

minimises Σ_e ω_e ‖X_e (W − W_e)‖² at α = 1, with G_e = X_eᵀ X_e the Gram of the map's own input and W here (in, out). A
small ridge r towards the average W̄ decides what no token shows. An embedding looks rows up: its Gram is diagonal, the
count of each token, so a row is the average weighted by how often each member's calibration used it. All else is
averaged, and so is a head that is tied to the embedding, whose rows are weighted as the embedding's.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from registry.maths.statistics import Statistics
from registry.maths.threads import one_thread
from registry.maths.trunk.mean import mean
from registry.maths.trunk.tensor import Combination, Rows, aligned, average

RIDGE = 1e-6
"""r, times the mean of the summed Gram's diagonal."""

SEGMENT_BYTES = 1 << 27
"""Room for the rows that are solved for at a time, in float64."""


def regmean(combination: Combination) -> Iterator[Tensor]:
    """Yield the rows of W in float64 (see the module); a single member's exactly.

    Option `alpha` is α, from 0 to 1. Each segment of rows takes one pass over the members' statistics, one at a time.

    Raises:
        ValueError: the summed Gram is not positive definite.
    """
    if len(combination.members) == 1:
        yield from mean(combination)
    elif combination.counts is not None:
        yield from _by_counts(combination, combination.counts)
    elif combination.inputs is not None:
        with one_thread():
            yield from _solved(combination)
    else:
        yield from mean(combination)


def _by_counts(combination: Combination, counts: Sequence[Tensor]) -> Iterator[Tensor]:
    for rows in aligned(combination):
        plain = average(rows, combination.weights)
        total, used = torch.zeros_like(plain), torch.zeros(len(plain), dtype=torch.float64)
        for member in rows.present:
            part = rows.parts[member]
            assert part is not None
            times = counts[member][rows.start : rows.start + len(part)].double() * combination.input_weights[member]
            total.addcmul_(part.double(), times[:, None])
            used += times
        yield torch.where(used[:, None] > 0, total / used.clamp_min(1e-300)[:, None], plain)


def _solved(combination: Combination) -> Iterator[Tensor]:
    factors: dict[tuple[int, ...], tuple[Tensor, float]] = {}
    for rows in _segments(combination):
        present = rows.present
        if len(present) == 1:  # tokens that one member alone knows
            yield average(rows, combination.weights)
            continue
        key = tuple(present)
        right, gram = torch.zeros(()), None
        for member, statistics in enumerate(_inputs(combination)):
            part = rows.parts[member]
            if part is None:
                continue
            own = _gram(statistics, combination.options["alpha"]).mul_(combination.input_weights[member])
            right = right + part.double() @ own
            if key not in factors:
                gram = own if gram is None else gram.add_(own)
        if gram is not None:
            factors[key] = _factor(gram)
        factor, ridge = factors[key]
        right = right.add_(average(rows, combination.weights), alpha=ridge)
        yield torch.cholesky_solve(right.T.contiguous(), factor).T


def _inputs(combination: Combination) -> Iterator[Statistics]:
    assert combination.inputs is not None
    return combination.inputs()


def _gram(statistics: Statistics, alpha: float) -> Tensor:
    gram = statistics.gram
    if alpha == 1:
        return gram
    diagonal = gram.diagonal().clone()
    gram.mul_(alpha).diagonal().copy_(diagonal)
    return gram


def _factor(gram: Tensor) -> tuple[Tensor, float]:
    ridge = RIDGE * float(gram.diagonal().mean())
    gram.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) != 0 or not ridge > 0:
        raise ValueError(f"the summed Gram of its input is not positive definite (order {int(info)} of {len(gram)})")
    return factor, ridge


def _segments(combination: Combination) -> Iterator[Rows]:
    """Yield rows in as large runs as there is room for: every run takes a pass over all statistics."""
    held: list[Rows] = []
    for rows in aligned(combination):
        if held and (rows.present != held[0].present or _nbytes([*held, rows]) > SEGMENT_BYTES):
            yield _joined(held)
            held = []
        held.append(rows)
    if held:
        yield _joined(held)


def _nbytes(runs: list[Rows]) -> int:
    return sum(8 * part.numel() for rows in runs for part in rows.parts[:1] if part is not None)


def _joined(runs: list[Rows]) -> Rows:
    parts = []
    for member in range(len(runs[0].parts)):
        blocks = [rows.parts[member] for rows in runs]
        parts.append(None if blocks[0] is None else torch.cat([b for b in blocks if b is not None]))
    return Rows(runs[0].start, tuple(parts), None)
