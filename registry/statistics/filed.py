"""Statistics that stay in a file, or in memory as they are, until one layer of them is needed.

Shapes: C channels of a site; G (C + 1, C + 1) packed to P = (C + 1)(C + 2) / 2 integers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from jaxtyping import Int16, Int64
from torch import Tensor

from registry.maths.statistics import Statistics
from registry.statistics.open_tensors import OpenTensors


@dataclass(frozen=True, eq=False)
class Packing:
    """The statistics of one layer, read or packed when they are asked for.

    Attributes:
        exponents: p of shape (C,).
        saturated: as in `Statistics`.
        packed: returns the upper triangle of G row by row, (P,).
    """

    exponents: Int16[Tensor, "C"]
    saturated: int
    packed: Callable[[], Int64[Tensor, "P"]]

    @property
    def shape(self) -> tuple[int]:
        """The shape (P,) of `packed`."""
        size = self.exponents.numel() + 1
        return (size * (size + 1) // 2,)

    def unpacked(self) -> Statistics:
        """Return the statistics with their whole matrix."""
        return Statistics.unpack(self.packed(), self.exponents, self.saturated)


class FiledStatistics(Sequence[Statistics]):
    """Statistics in files, such as those of a site layer by layer; each is read at every access.

    Args:
        items: where they are.
    """

    def __init__(self, items: Iterable[Packing]) -> None:
        self.items = tuple(items)

    @classmethod
    def of(
        cls,
        tensors: OpenTensors,
        names: Sequence[str],
        exponents: Iterable[Int16[Tensor, "C"]],
        saturated: Sequence[int],
    ) -> "FiledStatistics":
        """Return the statistics in an open file.

        Args:
            tensors: the file.
            names: of the packed matrices.
            exponents: of each.
            saturated: of each.

        Raises:
            ValueError: a packed matrix does not go with its exponents.
            LookupError: the file lacks a matrix.
        """
        items = []
        for name, own, held in zip(names, exponents, saturated, strict=True):
            item = Packing(own, held, _Reading(tensors, name))
            if tensors.entries[name].shape != item.shape:
                raise ValueError(f"{name} has shape {list(tensors.entries[name].shape)}, not {list(item.shape)}")
            items.append(item)
        return cls(items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Statistics: ...

    @overload
    def __getitem__(self, index: slice) -> "FiledStatistics": ...

    def __getitem__(self, index: int | slice) -> "Statistics | FiledStatistics":
        if isinstance(index, slice):
            return FiledStatistics(self.items[index])
        return self.items[index].unpacked()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(own == item for own, item in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True)
class _Reading:
    """Reads one tensor of an open file."""

    tensors: OpenTensors
    name: str

    def __call__(self) -> Int64[Tensor, "P"]:
        return self.tensors.read(self.name)


def packings(layers: Sequence[Statistics]) -> tuple[Packing, ...]:
    """Return statistics, in memory or in files, to be read or packed one by one."""
    if isinstance(layers, FiledStatistics):
        return layers.items
    return tuple(Packing(layer.exponents, layer.saturated, layer.packed) for layer in layers)
