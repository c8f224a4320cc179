"""Rows of float32 numbers in a file, read and written by blocks.

Plain reads and writes rather than a memory map: what the system caches of the file is then not memory of this process.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from registry.io.torch_blocks import to_block

BLOCK_ROWS = 2048
"""Rows that are read at once by `blocks`."""


class RowFile:
    """Rows of one shape in a file.

    Args:
        path: the file; created or emptied.
        shape: of one row.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self._path, self._shape, self._count = path, shape, 0
        self._nbytes = 4 * math.prod(shape)
        path.write_bytes(b"")

    def __len__(self) -> int:
        return self._count

    def read(self, rows: slice) -> Float[Tensor, "n ..."]:
        """Return some rows, on the CPU.

        Raises:
            OSError: the file cannot be read, or is too short.
        """
        start, count = rows.start, rows.stop - rows.start
        found = torch.empty((count, *self._shape))
        room = to_block(found).reshape(-1).data.cast("B")
        with self._path.open("rb", buffering=0) as file:
            file.seek(start * self._nbytes)
            while room:
                if not (size := file.readinto(room)):
                    raise OSError(f"{self._path} ends before row {start + count}")
                room = room[size:]
        return found

    def blocks(self) -> Iterator[Float[Tensor, "n ..."]]:
        """Yield all rows, some at a time."""
        for start in range(0, self._count, BLOCK_ROWS):
            yield self.read(slice(start, min(start + BLOCK_ROWS, self._count)))

    def write(self, start: int, rows: Float[Tensor, "n ..."]) -> None:
        """Write rows from one on.

        Raises:
            OSError: the file cannot be written.
        """
        room = to_block(rows).reshape(-1).data.cast("B")
        with self._path.open("r+b", buffering=0) as file:
            file.seek(start * self._nbytes)
            while room:
                room = room[file.write(room) or 0 :]
        self._count = max(self._count, start + len(rows))

    def append(self, rows: Float[Tensor, "n ..."]) -> None:
        """Write rows after the last."""
        self.write(self._count, rows)

    def clear(self) -> None:
        """Remove all rows."""
        self._path.write_bytes(b"")
        self._count = 0
