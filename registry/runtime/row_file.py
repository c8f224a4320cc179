"""Rows of numbers in a file, read and written by blocks.

Plain reads and writes rather than a memory map: what the system caches of the file is then not memory of this process.
"""

import math
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.io.torch_blocks import to_block

BLOCK_ROWS = 2048
"""Rows that are read at once by `blocks`."""


class RowFile:
    """Rows of one shape in a file, which is created, or emptied unless its rows are to be kept."""

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, *, keep: bool = False
    ) -> None:
        self._path, self._shape, self._dtype = path, shape, dtype
        self._nbytes = dtype.itemsize * math.prod(shape)
        if not (keep and path.is_file()):
            path.write_bytes(b"")
        self._count = path.stat().st_size // self._nbytes

    def __len__(self) -> int:
        return self._count

    def read(self, rows: slice) -> Float[Tensor, "n ..."]:
        """Return some rows, on the CPU (OSError: the file cannot be read, or is too short)."""
        found = torch.empty((rows.stop - rows.start, *self._shape), dtype=self._dtype)
        room = to_block(found).reshape(-1).data.cast("B")
        with self._path.open("rb", buffering=0) as file:
            self._read_into(room, file, rows.start)
        return found

    def take(self, numbers: Int64[Tensor, "n"]) -> Float[Tensor, "n ..."]:
        """Return the rows of some numbers, on the CPU (errors as `read`)."""
        found = torch.empty((len(numbers), *self._shape), dtype=self._dtype)
        room = to_block(found).reshape(-1).data.cast("B")
        with self._path.open("rb", buffering=0) as file:
            for index, number in enumerate(numbers.tolist()):
                self._read_into(room[index * self._nbytes : (index + 1) * self._nbytes], file, number)
        return found

    def _read_into(self, room: memoryview, file: FileIO, start: int) -> None:
        file.seek(start * self._nbytes)
        while room:
            if not (size := file.readinto(room)):
                raise OSError(f"{self._path} ends within the rows from {start} on")
            room = room[size:]

    def blocks(self) -> Iterator[Float[Tensor, "n ..."]]:
        """Yield all rows, some at a time."""
        for start in range(0, self._count, BLOCK_ROWS):
            yield self.read(slice(start, min(start + BLOCK_ROWS, self._count)))

    def write(self, start: int, rows: Float[Tensor, "n ..."]) -> None:
        """Write rows from one on (OSError: the file cannot be written)."""
        room = to_block(rows).reshape(-1).data.cast("B")
        with self._path.open("r+b", buffering=0) as file:
            file.seek(start * self._nbytes)
            while room:
                room = room[file.write(room) or 0 :]
        self._count = max(self._count, start + len(rows))

    def append(self, rows: Float[Tensor, "n ..."]) -> None:
        """Write rows after the last."""
        self.write(self._count, rows)

    def flush(self) -> None:
        """Flush the file to the disk (OSError: it refuses)."""
        with self._path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Remove all rows."""
        self._path.write_bytes(b"")
        self._count = 0
