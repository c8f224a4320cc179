"""Uncompressed arrays as the bytes that their chunks' files hold: read without zarr, for copying at the disk's speed.

It knows the one layout that `ArrayStore.put` writes for weights: whole rows in files `c.0.0`, `c.1.0` …, little-endian,
the last file as long as the others and filled up. Whatever is described otherwise has no raw form; zarr reads it.
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
        digest: of its content; nothing here checks it.
        folder: where its files are.
        layout: how it lies there.
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
        """Rows in each file."""
        return self.layout.height

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.layout.row_bytes

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.shape[0] * self.row_bytes

    @property
    def count(self) -> int:
        """Files."""
        return -(-self.shape[0] // self.height)

    def rows(self, number: int) -> int:
        """Return how many rows of the array one file holds."""
        return min(self.height, self.shape[0] - number * self.height)

    def read(self, number: int, into: memoryview) -> None:
        """Fill a buffer with the bytes of one file (errors as `pieces`)."""
        rest = [into]
        for piece in self.pieces(number, lambda: rest[0]):
            rest[0] = rest[0][len(piece) :]

    def pieces(self, number: int, buffers: Callable[[], memoryview]) -> Iterator[memoryview]:
        """Yield the bytes of one file in order, each time the filled part of a buffer that `buffers` gives.

        Raises:
            OSError: the file is absent, no regular one, or not of its length.
        """
        try:
            check_chunks(self.layout, self.folder, [number])
        except ValueError as error:
            raise OSError(str(error)) from error
        file, wanted = self.layout.chunk(self.folder, number), self.rows(number) * self.row_bytes
        with file.open("rb", buffering=0) as opened:
            while wanted:
                buffer = buffers()
                if not (read := opened.readinto(buffer[:wanted])):
                    raise OSError(f"{file.name} ends early")
                wanted -= read
                yield buffer[:read]


def raw_form(layout: Layout, folder: Path, digest: str) -> RawArray | None:
    """Return the raw form of the array in a folder, or None where its chunks are not its own bytes."""
    return None if layout.compressed or sys.byteorder != "little" else RawArray(digest, folder, layout)
