"""Tensors of an open file, read when they are needed."""

import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from registry.errors import CheckpointError, DamagedError
from registry.io.dtypes import NAMES
from registry.io.safetensors_file import Entry, read_header
from registry.io.torch_blocks import torch_dtype


@dataclass(frozen=True)
class OpenTensors:
    """The tensors of an open safetensors file.

    They are read, not mapped, so that they leave the memory after their use.

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
            name: the tensor.
            begin: the number of its first element.
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
