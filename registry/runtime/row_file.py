"""Rows of numbers in a file, read and written by blocks.

Plain reads and writes rather than a memory map: what the system caches of the file is then not memory of this process.
"""

import math
import os
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from registry.io.torch_blocks import to_block


class RowFile:
    """Rows of one shape and dtype in a file, which is created if it is not there."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._path, self._shape, self._dtype = path, shape, dtype
        self._nbytes = dtype.itemsize * math.prod(shape)
        path.touch()

    def __len__(self) -> int:
        return self._path.stat().st_size // self._nbytes

    def read(self, rows: slice) -> Float[Tensor, "n ..."]:
        """Return some rows, on the CPU (OSError: the file cannot be read, or is too short)."""
        found = torch.empty((rows.stop - rows.start, *self._shape), dtype=self._dtype)
        room = to_block(found).reshape(-1).data.cast("B")
        with self._path.open("rb", buffering=0) as file:
            file.seek(rows.start * self._nbytes)
            while room:
                if not (size := file.readinto(room)):
                    raise OSError(f"{self._path} ends within the rows from {rows.start} on")
                room = room[size:]
        return found

    def write(self, start: int, rows: Float[Tensor, "n ..."]) -> None:
        """Write rows from one on (OSError: the file cannot be written)."""
        room = to_block(rows).reshape(-1).data.cast("B")
        with self._path.open("r+b", buffering=0) as file:
            file.seek(start * self._nbytes)
            while room:
                room = room[file.write(room) or 0 :]

    def flush(self) -> None:
        """Flush the file to the disk (OSError: it refuses)."""
        with self._path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
