"""RegMean: each linear map such that, on every member's inputs, it gives what that member gives (Jin et al. 2022, §3).

    W = (Σ_e ω_e Ĝ_e + r I)⁻¹ (Σ_e ω_e Ĝ_e W_e + r W̄)        Ĝ = α G + (1 − α) diag(G)          (Jin eq. 2, §3.3)

minimises Σ_e ω_e ‖X_e (W − W_e)‖² at α = 1, with G_e = X_eᵀ X_e the Gram of the map's own input and W here (in, out). A
small damping r towards the average W̄ decides what no token shows. An embedding looks rows up: its Gram is diagonal, the
count of each token, so a row is the average weighted by how often each member's calibration used it. All else is
averaged, and so is a head that is tied to the embedding, whose rows are weighted as the embedding's.

G_e W_e depends on one member alone: it is a statistic of that member (`products`), taken once and kept. What is left
for a subset is to sum Grams and products and to solve once, so that the time hardly grows with the members.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.cholesky import cholesky_factor, cholesky_solved
from registry.maths.threads import one_thread
from registry.maths.trunk.combination import Combination, RowBlock, aligned, average, averaged, tiles

RIDGE = 1e-6
"""r, times the mean of the summed Gram's diagonal."""

ROWS = 512
"""Rows that are multiplied or solved for at once. The last bits may depend on it."""

_Factor = tuple[Tensor, float, list[Tensor]]
"""The factor of a summed Gram (H, H), r, and the diagonal of each member's Gram (H,); none are kept at α = 1."""


def regression_mean(combination: Combination) -> Iterator[Tensor]:
    """Yield the rows of W in float64 (see the module); a single member's exactly; option `alpha` is α, from 0 to 1.

    (ValueError: the summed Gram is not positive definite.)
    """
    if len(combination.members) > 1 and combination.counts is not None:
        yield from _by_counts(combination, combination.counts)
    elif len(combination.members) > 1 and combination.inputs is not None:
        yield from (rows for _, rows in regression_means([combination]))
    else:
        yield from averaged(combination)


def regression_means(combinations: Sequence[Combination]) -> Iterator[tuple[int, Tensor]]:
    """Yield the rows of several W of one input, each with its map's number: the bits of `regression_mean`, one by one.

    Their Gram is summed and factored once. They are of two members or more, and have `inputs` and `products`
    (ValueError: the sum is not positive definite).
    """
    factors: dict[tuple[int, ...], _Factor] = {}
    for number, combination in enumerate(combinations):
        for rows in aligned(combination):
            if len(rows.present) == 1:  # tokens that one member alone knows
                yield number, average(rows, combination.weights)
                continue
            members = tuple(rows.present)
            if members not in factors:
                with one_thread():
                    factors[members] = _factor(combination, members)
            for few in tiles(rows, ROWS):
                with one_thread():
                    solved = _solved(combination, few, factors[members])
                yield number, solved


def products(blocks: Iterator[Float[Tensor, "r H"]], gram: Float[Tensor, "H H"]) -> Iterator[Float[Tensor, "r H"]]:
    """Yield the rows of W_e G_e of one linear map, weight (R, H), float64: G_e W_e of the equation, transposed."""
    for block in blocks:
        for rows in block.split(ROWS):
            with one_thread():
                product = rows.double() @ gram
            yield product


def _by_counts(combination: Combination, counts: Sequence[Tensor]) -> Iterator[Tensor]:
    for block in aligned(combination):
        for rows in tiles(block):
            plain = average(rows, combination.weights)
            total, used = torch.zeros_like(plain), torch.zeros((len(plain), 1), dtype=torch.float64)
            for member in rows.present:
                part = rows.parts[member]
                assert part is not None
                times = counts[member][rows.start : rows.start + len(part)].double() * combination.input_weights[member]
                total.addcmul_(part.double(), times[:, None])
                used += times[:, None]
            yield torch.where(used > 0, total.div_(used.clamp_min(1e-300)), plain)


def _solved(combination: Combination, rows: RowBlock, factor: _Factor) -> Tensor:
    """Return rows of W, (r, H): the solution for Σ_e ω_e Ĝ_e W_e + r W̄."""
    lower, damping, diagonals = factor
    alpha, right = combination.options["alpha"], average(rows, combination.weights).mul_(damping)
    stop = rows.start + len(right)
    for place, member in enumerate(rows.present):
        weight, part = combination.input_weights[member], rows.parts[member]
        assert part is not None
        right.add_(combination.products[member](rows.start, stop), alpha=weight * alpha)
        if diagonals:
            right.addcmul_(part.double(), diagonals[place], value=weight * (1 - alpha))
    return cholesky_solved(lower, right.T).T


def _factor(combination: Combination, members: tuple[int, ...]) -> _Factor:
    """Return the factor of Σ_e ω_e Ĝ_e + r I over some members."""
    assert combination.inputs is not None
    alpha, gram = combination.options["alpha"], None
    diagonals: list[Tensor] = []
    for member, statistics in enumerate(combination.inputs()):
        if member not in members:
            continue
        weight, first = combination.input_weights[member], gram is None
        if gram is None:
            size = statistics.exponents.numel()
            gram = torch.zeros((size, size), dtype=torch.float64)
        statistics.add_upper_gram_to(gram, weight * alpha, first=first)
        if alpha != 1:
            diagonals.append(statistics.diagonal)
            gram.diagonal().add_(diagonals[-1], alpha=weight * (1 - alpha))
        del statistics  # so that one member's is in memory
    assert gram is not None
    damping = RIDGE * float(gram.diagonal().mean())
    gram.diagonal().add_(damping)
    lower, order = cholesky_factor(gram)
    if order or not damping > 0:
        raise ValueError(f"the summed Gram of its input is not positive definite (order {order} of {len(gram)})")
    return lower, damping, diagonals
