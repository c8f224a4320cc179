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
from registry.maths.trunk.combination import Combination, RowBlock, aligned, average
from registry.maths.trunk.mean import mean

RIDGE = 1e-6
"""r, times the mean of the summed Gram's diagonal."""

RUN_BYTES = 1 << 26
"""Room for the rows that are solved for at a time, in float64: every run takes a pass over all statistics."""

ROWS = 512
"""RowBlock that are multiplied or solved for at once."""


def regmean(combination: Combination) -> Iterator[Tensor]:
    """Yield the rows of W in float64 (see the module); a single member's exactly.

    Option `alpha` is α, from 0 to 1.

    Raises:
        ValueError: the summed Gram is not positive definite.
    """
    if len(combination.members) > 1 and combination.counts is not None:
        yield from _by_counts(combination, combination.counts)
    elif len(combination.members) > 1 and combination.inputs is not None:
        yield from (rows for _, rows in regmean_together([combination]))
    else:
        yield from mean(combination)


def regmean_together(combinations: Sequence[Combination]) -> Iterator[tuple[int, Tensor]]:
    """Yield the rows of several W of one input, each with the number of its map: the bits of `regmean`, one by one.

    Each run of rows takes one pass over the members' statistics, one member at a time, whatever maps it is of.

    Args:
        combinations: of two members or more, with `inputs`.

    Raises:
        ValueError: the summed Gram is not positive definite.
    """
    factors: dict[tuple[int, ...], tuple[Tensor, float]] = {}
    weights = combinations[0].weights
    for run in _runs(combinations):
        if len(run[0][1].present) == 1:  # tokens that one member alone knows
            yield from ((number, average(rows, weights)) for number, rows in run)
            continue
        with one_thread():
            rights, (factor, ridge) = _right_sides(combinations[0], [rows for _, rows in run], factors)
        for right, (number, rows) in zip(rights, run, strict=True):
            right.add_(average(rows, weights), alpha=ridge)
            for few in _few(right):
                with one_thread():
                    solved = torch.cholesky_solve(right[few].T.contiguous(), factor).T
                yield number, solved


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


def _right_sides(
    combination: Combination, run: Sequence[RowBlock], factors: dict[tuple[int, ...], tuple[Tensor, float]]
) -> tuple[list[Tensor], tuple[Tensor, float]]:
    """Return Σ_e ω_e W_e Ĝ_e of each of the rows, and the factor of Σ_e ω_e Ĝ_e + r I with r, which is kept."""
    present, gram = run[0].present, None
    rights = [torch.zeros(_part(rows).shape, dtype=torch.float64) for rows in run]
    inputs = _inputs(combination)
    for member in range(len(combination.members)):
        statistics = next(inputs)
        if member not in present:
            continue
        own = _gram(statistics, combination.options["alpha"]).mul_(combination.input_weights[member])
        del statistics  # so that one Gram of the member is in memory
        for right, rows in zip(rights, run, strict=True):
            part = rows.parts[member]
            assert part is not None
            for few in _few(part):
                right[few].addmm_(part[few].double(), own)
        if tuple(present) not in factors:
            gram = own if gram is None else gram.add_(own)
    if gram is not None:
        factors[tuple(present)] = _factor(gram)
    return rights, factors[tuple(present)]


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


def _runs(combinations: Sequence[Combination]) -> Iterator[list[tuple[int, RowBlock]]]:
    """Yield rows, with the number of the combination that each are of, in as large runs as there is room for."""
    held: list[tuple[int, RowBlock]] = []
    room = RUN_BYTES
    for number, combination in enumerate(combinations):
        for rows in aligned(combination):
            nbytes = 8 * _part(rows).numel()
            if held and (rows.present != held[0][1].present or nbytes > room):
                yield held
                held, room = [], RUN_BYTES
            held.append((number, rows))
            room -= nbytes
    if held:
        yield held


def _few(rows: Tensor) -> Iterator[slice]:
    """Yield all rows, a few at a time."""
    return (slice(start, start + ROWS) for start in range(0, len(rows), ROWS))


def _part(rows: RowBlock) -> Tensor:
    return next(part for part in rows.parts if part is not None)
