"""Uncompressed arrays read straight from their chunk files, for copying at the speed of the disk.

Only the layout that `ArrayStore.put` writes for weights is supported: whole rows in files `c.0.0`, `c.1.0` …,
little-endian, the last file padded to the length of the others.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.arrays.chunk_files import ArrayFiles
from store.arrays.content_digest import Block, check_digest, checked
from store.arrays.zarr_layout import CARRIERS, ChunkFile, Layout

if TYPE_CHECKING:
    import hashlib


@dataclass(frozen=True)
class RawArray:
    """An array in files of its own bytes.

    Attributes:
        digest: digest of the content; not verified here.
        files: its files.
    """

    digest: str
    files: ArrayFiles

    @property
    def layout(self) -> Layout:
        """Dtype, shape and chunks of the files."""
        return self.files.layout

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
        return self.layout.count

    def rows(self, number: int) -> int:
        """Return the number of rows of the array in one file."""
        return min(self.height, self.shape[0] - number * self.height)

    def opened(self, number: int) -> AbstractContextManager[ChunkFile]:
        """Open one file of the array, unbuffered, at its first byte.

        Raises:
            OSError: the file is absent, not a regular file, or of the wrong length.
        """
        return self.files.opened(number)

    def check(self, state: "hashlib._Hash") -> None:
        """Check that a hash of all bytes, begun with `new_hash`, matches the digest.

        Raises:
            DamagedError: it does not match.
        """
        if state.hexdigest() != self.digest:
            self.files.drop()
        check_digest(self.digest, state)


def fill(file: ChunkFile, into: memoryview) -> None:
    """Fill a buffer with the next bytes of a file.

    Raises:
        OSError: the file ends early, or cannot be read.
    """
    while into:
        if not (count := file.readinto(into)):
            raise OSError("a file of it ends early")
        into = into[count:]


def raw_form(files: ArrayFiles, digest: str) -> RawArray | None:
    """Return the raw form of an array, or None if its chunks are compressed or in another byte order."""
    return None if files.layout.compressed or sys.byteorder != "little" else RawArray(digest, files)


def raw_blocks(raw: RawArray, rows: int) -> Iterator[Block]:
    """Yield an uncompressed array in its carrier dtype, few rows at a time, unchecked.

    Args:
        raw: the array.
        rows: rows of a block, at most; every file begins a new block.

    Raises:
        OSError: a file is absent, or ends early.
        ValueError: a file has the wrong length or type.
    """
    import numpy as np

    carrier = CARRIERS[raw.dtype][0]
    for number, file in enumerate(raw.files.open_all()):
        for start in range(0, height := raw.rows(number), rows):
            block = np.empty((min(rows, height - start), *raw.shape[1:]), carrier)
            fill(file, block.data.cast("B"))
            yield block


def blocks_of_rows(raw: RawArray, rows: int) -> Iterator[Block]:
    """Yield an uncompressed array in its carrier dtype, few rows at a time, and check it after the last.

    Args:
        raw: the array.
        rows: rows of a block, at most; every file begins a new block.

    Raises:
        DamagedError: the bytes do not match the digest.
        StorageError: a file cannot be fetched.
    """
    return checked(raw.digest, raw.dtype, raw.shape, raw_blocks(raw, rows), raw.files.drop)
