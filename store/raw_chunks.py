"""Uncompressed arrays read straight from their chunk files, without zarr, for copying at the speed of the disk.

Only the layout that `ArrayStore.put` writes for weights is supported: whole rows in files `c.0.0`, `c.1.0` …,
little-endian, the last file padded to the length of the others. Arrays with another layout are read by zarr.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.zarr_layout import Layout, check_chunks


@dataclass(frozen=True)
class RawArray:
    """An array in files of its own bytes.

    Attributes:
        digest: digest of the content; not verified here.
        folder: the folder of its files.
        layout: dtype, shape and chunks of the files.
    """

    digest: str
    folder: Path
    layout: Layout

    @property
    def dtype(self) -> str:
        """True dtype."""
        return self.layout.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """At least one axis, every axis ≥ 1."""
        return self.layout.shape

    @property
    def height(self) -> int:
        """Rows per file."""
        return self.layout.height

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return self.layout.row_bytes

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.shape[0] * self.row_bytes

    @property
    def count(self) -> int:
        """Number of files."""
        return -(-self.shape[0] // self.height)

    def rows(self, number: int) -> int:
        """Return the number of rows of the array in one file."""
        return min(self.height, self.shape[0] - number * self.height)

    def read(self, number: int, into: memoryview) -> None:
        """Fill a buffer with the bytes of one file (raises the errors of `pieces`)."""
        rest = [into]
        for piece in self.pieces(number, lambda: rest[0]):
            rest[0] = rest[0][len(piece) :]

    def pieces(self, number: int, buffers: Callable[[], memoryview]) -> Iterator[memoryview]:
        """Yield the bytes of one file in order, as the filled parts of buffers that `buffers` returns.

        Raises:
            OSError: the file is absent, not a regular file, or of the wrong length.
        """
        try:
            check_chunks(self.layout, self.folder, [number])
        except ValueError as error:
            raise OSError(str(error)) from error
        file, remaining = self.layout.chunk(self.folder, number), self.rows(number) * self.row_bytes
        with file.open("rb", buffering=0) as stream:
            while remaining:
                buffer = buffers()
                if not (read := stream.readinto(buffer[:remaining])):
                    raise OSError(f"{file.name} ends early")
                remaining -= read
                yield buffer[:read]


def raw_form(layout: Layout, folder: Path, digest: str) -> RawArray | None:
    """Return the raw form of the array in a folder, or None if its chunks are compressed or in another byte order."""
    return None if layout.compressed or sys.byteorder != "little" else RawArray(digest, folder, layout)
