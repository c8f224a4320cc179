"""Sums over a subset of members, and maps solved from them, kept in the cache (`kept_tensors`).

Reading, checking and adding the members' statistics takes longer the more members there are; a kept sum is read once,
for routers of any ridge strength. Linear maps that RegMean solved serve any router over the same trunk. Both are kept
in float64, as they were computed, so that compositions have the same bytes with and without them.

Sums in which members count alike are kept. Other factors are mostly tried once, and a sum is made for them each time.

Bytes of one layer: 4 H (H + 1) for the Grams of one site, and 8 R H for each linear map of R rows and H inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from registry.errors import StorageError
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import to_block
from registry.maths.gram_sum import GramSum, gram_sum
from registry.member import Member
from registry.statistics.input_products import arrays_of
from registry.statistics.kept_tensors import MAPS, SUMS, KeptTensors
from registry.statistics.open_tensors import OpenTensors
from store.arrays import Block

NumberedBlock = tuple[int, Tensor]
"""The number of a map among those that are solved together, and a block of its rows, (r, H)."""

ROWS = 512
"""Rows of a map that are read at once."""


@dataclass(frozen=True)
class SubsetSums:
    """Sums of members' Grams, and maps solved from them. Safe for several threads.

    Attributes:
        kept: the files; without a cache there are none, not even for a while.
    """

    kept: KeptTensors = field(default_factory=KeptTensors)

    def keeps(self, weights: Sequence[float]) -> bool:
        """Tell whether sums with these factors of the members are kept."""
        return self.kept.files is not None and len(set(weights)) == 1

    def gram(self, members: Sequence[Member], site: str, layer: int, weights: Sequence[float]) -> GramSum:
        """Return the weighted sum of the members' Grams at one site and layer, for the caller to overwrite.

        Raises:
            IncompatibleError: a member was registered without these statistics.
            DamagedError: a stored array is damaged.
        """
        compute = partial(_gram_sum, members, site, layer, weights)
        for member in members:
            member.require_statistics([site], "this", "needs")
        if not self.keeps(weights):
            return compute()
        fresh: list[GramSum] = []

        def streams() -> list[Stream]:
            fresh.append(compute())
            return _streams(fresh[0])

        made_from = [layer, [arrays_of(member, site, layer) for member in members], list(weights)]
        with ExitStack() as stack:
            tensors = _unless_full(stack, self.kept.opened(SUMS, made_from, streams))
            if fresh or tensors is None:
                return fresh[0] if fresh else compute()
            size, experts = tensors.entries["moments"].shape
            gram, moments = (torch.empty((size, width), dtype=torch.float64) for width in (size, experts))
            total = GramSum(gram, moments)
            tensors.fill("moments", 0, total.moments)
            begin = 0
            for row in range(size):
                tensors.fill("gram", begin, total.gram[row, row:])
                begin += size - row
        return total

    def maps(
        self,
        shapes: Sequence[tuple[int, ...]],
        made_from: Any,
        solve: Callable[[int], Iterator[NumberedBlock]],
        first: int = 0,
    ) -> Iterator[NumberedBlock]:
        """Yield the rows of linear maps that are solved together, each with the number of its map, in their order.

        Args:
            shapes: the shape of each map, (R, H).
            made_from: what their bits depend on beside this machine's arithmetic, as JSON.
            solve: yields the same, float64, from the map of a number on, without the cache.
            first: the number of the map to begin with.

        Raises:
            Exception: any error of `solve`.
        """

        def streams() -> list[Stream]:
            solved = groupby(solve(0), key=itemgetter(0))
            return [Stream(_name(number), "float64", shape, lambda: _next(solved)) for number, shape in numbered]

        numbered = list(enumerate(shapes))
        with ExitStack() as stack:
            tensors = _unless_full(stack, self.kept.opened(MAPS, made_from, streams))
            if tensors is None:
                yield from solve(first)
                return
            for number, (height, *_) in numbered[first:]:
                for start in range(0, height, ROWS):
                    yield number, tensors.rows(_name(number), start, min(start + ROWS, height))


def _unless_full(stack: ExitStack, opened: AbstractContextManager[OpenTensors]) -> OpenTensors | None:
    """Open a file of tensors for as long as the stack lasts; None if the disk is full or refuses."""
    try:
        return stack.enter_context(opened)
    except (OSError, StorageError):
        return None


def _gram_sum(members: Sequence[Member], site: str, layer: int, weights: Sequence[float]) -> GramSum:
    # A generator: a Gram is (H + 1, H + 1), and only one member's needs to be in memory.
    return gram_sum((member.packed_statistics(site, layer) for member in members), weights)


def _streams(total: GramSum) -> list[Stream]:
    """Return a sum as tensors of a file: the upper triangle row by row, (H (H + 1) / 2,), and the moments, (H, E)."""
    size = len(total.gram)
    rows = (total.gram[row, row:] for row in range(size))
    return [
        Stream("gram", "float64", (size * (size + 1) // 2,), lambda: map(to_block, rows)),
        Stream.of("moments", to_block(total.moments), "float64"),
    ]


def _name(number: int) -> str:
    """Return the name of a map in a file, whose tensors are written by name."""
    return f"{number:06d}"


def _next(solved: Iterator[tuple[int, Iterator[NumberedBlock]]]) -> Iterator[Block]:
    """Yield the rows of the map that comes next."""
    _, blocks = next(solved)
    yield from (to_block(rows) for _, rows in blocks)
