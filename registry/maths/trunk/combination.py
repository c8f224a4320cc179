"""One tensor of a subset, as the input of methods that combine the members' weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from registry.maths.statistics import PackedStatistics

Pass = Callable[[], Iterator[Tensor]]
"""Starts a pass over a tensor: blocks of its rows, in order."""

TILE_ELEMENTS = 1 << 18
"""Elements of a tensor in `tiles`: 2 MiB of float64."""

Rows = Callable[[int, int], Tensor]
"""Returns some rows of a tensor, from the first number up to the second."""

Options = Mapping[str, float]
"""The parameters of a method, all of them."""


@dataclass(frozen=True)
class Combination:
    """Inputs of one tensor of a composition.

    Attributes:
        name: the dense tensor.
        members: a pass over each member's tensor, in name order; they agree in all axes but the first.
        weights: ω_e > 0, one a member.
        base: a pass over the base model's tensor, where the method needs it.
        digests: the members' content digests.
        inputs: for the weight of a linear map, the statistics of its input, one a member, taken one at a time.
        products: and each member's rows of W_e G_e, W_e the weight and G_e its input's Gram, float64.
        input_weights: what each member's statistics and token counts are multiplied by.
        counts: for the embedding, how often each of its rows was used, (rows,) one a member.
        coefficients: α_e of any sign, one a member, in place of weights and scale of task vectors; empty for none.
        summed: task vectors are added up, not averaged.
    """

    name: str
    members: Sequence[Pass]
    weights: Sequence[float]
    base: Pass | None = None
    digests: Sequence[str] = ()
    inputs: Callable[[], Iterator[PackedStatistics]] | None = None
    products: Sequence[Rows] = ()
    input_weights: Sequence[float] = ()
    counts: Sequence[Tensor] | None = None
    options: Options = field(default_factory=dict)
    coefficients: Sequence[float] = ()
    summed: bool = False


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a combination.

    Attributes:
        start: the first row's number.
        parts: each member's rows, of shape (n, …); None for a member that has no such rows.
        base: the base model's, or None likewise.
    """

    start: int
    parts: tuple[Tensor | None, ...]
    base: Tensor | None

    @property
    def present(self) -> list[int]:
        """The members that have these rows."""
        return [number for number, part in enumerate(self.parts) if part is not None]


def aligned(combination: Combination) -> Iterator[RowBlock]:
    """Yield the same rows of all members and of the base model at a time."""
    passes = [*combination.members, *([combination.base] if combination.base else [])]
    streams = [start() for start in passes]
    held: list[Tensor | None] = [next(stream, None) for stream in streams]
    start = 0
    while lengths := [len(part) for part in held if part is not None]:
        shortest = min(lengths)
        rows = [None if part is None else part[:shortest] for part in held]
        yield RowBlock(start, tuple(rows[: len(combination.members)]), rows[-1] if combination.base else None)
        start += shortest
        for number, part in enumerate(held):
            if part is not None:
                held[number] = part[shortest:] if len(part) > shortest else next(streams[number], None)


def tile_rows(width: int) -> int:
    """Return the rows of a tile, whose rows have so many elements."""
    return max(1, TILE_ELEMENTS // max(1, width))


def tiles(rows: RowBlock, step: int | None = None) -> Iterator[RowBlock]:
    """Yield the same rows `step` at a time; by default so few that what is made of them stays in the cache."""
    given = [part for part in (*rows.parts, rows.base) if part is not None]
    step = step or tile_rows(max((part[0].numel() for part in given), default=1))
    for start in range(0, len(given[0]), step):
        parts = tuple(None if part is None else part[start : start + step] for part in rows.parts)
        base = None if rows.base is None else rows.base[start : start + step]
        yield RowBlock(rows.start + start, parts, base)


def average(rows: RowBlock, weights: Sequence[float]) -> Tensor:
    """Return Σ ω_e θ_e / Σ ω_e, float64, over those that have the rows, in their order; a single member exactly."""
    parts = [(part, weight) for part, weight in zip(rows.parts, weights, strict=True) if part is not None]
    (first, own), *others = parts
    total = first.to(torch.float64, copy=True)
    if not others:
        return total
    total.mul_(own)
    for part, weight in others:
        total.add_(part.double(), alpha=weight)  # weights widened exactly
    return total.div_(sum(weight for _, weight in parts))


def averaged(combination: Combination) -> Iterator[Tensor]:
    """Yield Σ_e ω_e θ_e / Σ_e ω_e by rows, in float64 (BTX §3.2; DUME §2.2). A single member is returned exactly."""
    for rows in aligned(combination):
        for few in tiles(rows):
            yield average(few, combination.weights)


def of_base(combination: Combination) -> Iterator[Tensor]:
    """Yield the base model's rows, exactly; rows that it lacks are averaged over the members."""
    for rows in aligned(combination):
        yield average(rows, combination.weights) if rows.base is None else rows.base
