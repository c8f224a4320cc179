"""Tensors and statistics in a file, or in memory as they are, each read when it is needed.

Shapes: C channels of a site; G (C + 1, C + 1) packed to P = (C + 1)(C + 2) / 2 integers.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int16, Int64
from torch import Tensor

from registry.errors import CheckpointError, DamagedError
from registry.io.dtypes import NAMES
from registry.io.safetensors_header import Entry, read_header
from registry.io.torch_blocks import torch_dtype
from registry.maths.statistics import Statistics


@dataclass(frozen=True)
class OpenTensors:
    """The tensors of an open safetensors file, read, not mapped, so that they leave the memory after their use.

    Attributes:
        file: its descriptor; the file stays readable if it is deleted meanwhile.
        entries: name → where the tensor is.
    """

    file: int
    entries: dict[str, Entry]

    @classmethod
    def open(cls, path: Path) -> "OpenTensors":
        """Open a file, which is closed with the last reference to it.

        Raises:
            CheckpointError: it is not a safetensors file, or cannot be read.
        """
        entries = read_header(path).tensors
        try:
            opened = cls(os.open(path, os.O_RDONLY), entries)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}", "copy the file again") from error
        weakref.finalize(opened, os.close, opened.file)
        return opened

    def fill(self, name: str, begin: int, into: Tensor) -> None:
        """Read consecutive elements of a tensor, from number `begin` on.

        Args:
            into: takes them; contiguous, of the tensor's dtype.

        Raises:
            DamagedError: the file ends early.
        """
        rest, at = into.numpy().data.cast("B"), self.entries[name].begin + into.element_size() * begin
        while rest:
            if not (read := os.preadv(self.file, [rest], at)):
                raise DamagedError("a file of statistics ends early", "repeat the command: the file is made again")
            rest, at = rest[read:], at + read

    def read(self, name: str) -> Tensor:
        """Return a whole tensor of integers or of float64 (errors as `fill`)."""
        entry = self.entries[name]
        found = torch.empty(entry.shape, dtype=torch_dtype(NAMES[entry.dtype]))
        self.fill(name, 0, found)
        return found

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return some rows of a matrix of float64, (r, H)."""
        _, width = self.entries[name].shape
        found = torch.empty((stop - start, width), dtype=torch.float64)
        self.fill(name, start * width, found)
        return found


@dataclass(frozen=True, eq=False)
class LazyStatistics:
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


class LazyLayers(Sequence[Statistics]):
    """Statistics of a site layer by layer, of which each is read at every access."""

    def __init__(self, items: Iterable[LazyStatistics]) -> None:
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LazyLayers(self.items[index])
        item = self.items[index]
        return Statistics.unpack(item.packed(), item.exponents, item.saturated)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(own == item for own, item in zip(self, other, strict=True))


def lazy_layers(layers: Sequence[Statistics]) -> tuple[LazyStatistics, ...]:
    """Return statistics, in memory or in files, to be read or packed one by one."""
    if isinstance(layers, LazyLayers):
        return layers.items
    return tuple(LazyStatistics(layer.exponents, layer.saturated, layer.packed) for layer in layers)
