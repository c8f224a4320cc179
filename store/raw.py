"""Uncompressed arrays as the bytes that their chunks' files hold: read without zarr, for copying at the disk's speed.

It knows the one layout that `ArrayStore.put` writes for weights: whole rows in files `c.0.0`, `c.1.0` …, little-endian,
the last file as long as the others and filled up. Whatever is described otherwise has no raw form; zarr reads it.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RawArray:
    """An array in files of its own bytes.

    Attributes:
        digest: of its content; nothing here checks it.
        dtype: true dtype.
        shape: at least one axis, every axis ≥ 1.
        folder: where its files are.
        height: rows in each file.
        row_bytes: bytes of a row.
    """

    digest: str
    dtype: str
    shape: tuple[int, ...]
    folder: Path
    height: int
    row_bytes: int

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
            OSError: the file is absent, or not of its length.
        """
        name = ".".join(["c", str(number), *["0"] * (len(self.shape) - 1)])
        whole, wanted = self.height * self.row_bytes, self.rows(number) * self.row_bytes
        with (self.folder / name).open("rb", buffering=0) as file:
            if (size := os.fstat(file.fileno()).st_size) != whole:
                raise OSError(f"{name} has {size:,} bytes, {whole:,} were written")
            while wanted:
                buffer = buffers()
                if not (read := file.readinto(buffer[:wanted])):
                    raise OSError(f"{name} ends early")
                wanted -= read
                yield buffer[:read]


def describe(folder: Path, digest: str, carriers: Mapping[str, tuple[str, int]]) -> RawArray | None:
    """Return the raw form of the array in a folder, or None where its description is not that of one.

    Args:
        folder: of the array.
        digest: of its content.
        carriers: true dtype → (the dtype stored, bytes an element).
    """
    try:
        found = json.loads((folder / "zarr.json").read_bytes())
        dtype, shape = found["attributes"]["dtype"], found["shape"]
        carrier, size = carriers[dtype]
        height = found["chunk_grid"]["configuration"]["chunk_shape"][0]
        if not shape or not all(isinstance(n, int) and n > 0 for n in (*shape, height)):
            return None
        expected = {
            "zarr_format": 3,
            "node_type": "array",
            "data_type": carrier,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [height, *shape[1:]]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        }
        codec = {"name": "bytes"} if size == 1 else {"name": "bytes", "configuration": {"endian": "little"}}
        if any(found[key] != value for key, value in expected.items()) or found["codecs"] != [codec]:
            return None
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    if found.get("storage_transformers") or sys.byteorder != "little":
        return None
    return RawArray(digest, dtype, tuple(shape), folder, height, math.prod(shape[1:]) * size)
