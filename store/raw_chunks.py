"""Uncompressed arrays read straight from their chunk files, without zarr, for copying at the speed of the disk.

Only the layout that `ArrayStore.put` writes for weights is supported: whole rows in files `c.0.0`, `c.1.0` …,
little-endian, the last file padded to the length of the others. Arrays with another layout are read by zarr.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
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

    @contextmanager
    def opened(self, number: int) -> Iterator[FileIO]:
        """Open one file of the array, unbuffered, at its first byte.

        Raises:
            OSError: the file is absent, not a regular file, or of the wrong length.
        """
        try:
            check_chunks(self.layout, self.folder, [number])
        except ValueError as error:
            raise OSError(str(error)) from error
        with FileIO(os.open(self.layout.chunk(self.folder, number), os.O_RDONLY | os.O_NOFOLLOW)) as file:
            yield file


def fill(file: FileIO, into: memoryview) -> None:
    """Fill a buffer with the next bytes of a file.

    Raises:
        OSError: the file ends early, or cannot be read.
    """
    while into:
        if not (count := file.readinto(into)):
            raise OSError("a file of it ends early")
        into = into[count:]


def raw_form(layout: Layout, folder: Path, digest: str) -> RawArray | None:
    """Return the raw form of the array in a folder, or None if its chunks are compressed or in another byte order."""
    return None if layout.compressed or sys.byteorder != "little" else RawArray(digest, folder, layout)
