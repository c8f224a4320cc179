"""Validation of zarr.json: only what this program writes is accepted, so that no other codec, type or size is tried.

The `zarr.json` of an untrusted array may describe anything. It is read as JSON here and compared key by key with what
`ArrayStore` writes. Chunks are checked against it before anything reads them: a chunk is a regular file of exactly the
bytes of its rows, or a zstd frame whose header declares that size.
"""

import json
import math
import os
import stat
from dataclasses import dataclass
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

from store.digest import canonical_json

ChunkFile = FileIO | BytesIO  # an open chunk, at its first byte: a file, or the bytes of one that came from elsewhere
DESCRIPTION = "zarr.json"  # the file that describes an array
DESCRIPTION_BYTES = 2**16  # the largest zarr.json that is read
CHUNK_ELEMENTS = 2**22  # maximum number of elements per chunk: 8 MiB of bfloat16. Few large chunks, yet bounded memory
ROW_ELEMENTS = 2**24  # maximum number of elements per row (one index of the first axis); a chunk holds at least one row

CARRIERS = {
    "bfloat16": ("uint16", 2),
    "float16": ("float16", 2),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "int16": ("int16", 2),
    "int32": ("int32", 4),
    "int64": ("int64", 8),
    "uint8": ("uint8", 1),
}
"""True dtype → (the dtype zarr stores, bytes per element). zarr has no bfloat16: its bits are stored as uint16."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 18  # maximum length of the header of a zstd frame (RFC 8878, 3.1.1)


@dataclass(frozen=True)
class Layout:
    """Layout of an array in its folder.

    Attributes:
        dtype: true dtype, a key of `CARRIERS`.
        shape: at least one axis, every axis ≥ 1.
        height: rows per chunk; the last chunk is padded with zeros.
        compressed: chunks are zstd frames.
    """

    dtype: str
    shape: tuple[int, ...]
    height: int
    compressed: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * CARRIERS[self.dtype][1]

    @property
    def nbytes(self) -> int:
        """Bytes of the array, uncompressed."""
        return self.shape[0] * self.row_bytes

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.shape[0] // self.height)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk, uncompressed."""
        return self.height * self.row_bytes

    def chunk_name(self, number: int) -> str:
        """Return the name of the file of one chunk."""
        return ".".join(["c", str(number), *["0"] * (len(self.shape) - 1)])

    def rows(self, number: int) -> int:
        """Return the number of rows of the array in one chunk."""
        return min(self.height, self.shape[0] - number * self.height)

    def document(self) -> dict[str, Any]:
        """Return the content of zarr.json."""
        carrier, width = CARRIERS[self.dtype]
        codecs: list[dict[str, Any]] = [
            {"name": "bytes"} | ({"configuration": {"endian": "little"}} if width > 1 else {})
        ]
        if self.compressed:
            codecs.append({"name": "zstd", "configuration": {"level": 0, "checksum": False}})
        return {
            "shape": list(self.shape),
            "data_type": carrier,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.height, *self.shape[1:]]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": 0.0 if carrier.startswith("float") else 0,
            "codecs": codecs,
            "attributes": {"dtype": self.dtype},
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }


def read_layout(folder: Path) -> Layout:
    """Return the layout that an array's zarr.json describes (errors as `parse_layout` and `regular_size`)."""
    file = folder / DESCRIPTION
    if stat.S_ISLNK(folder.lstat().st_mode):
        raise ValueError("its folder is a symbolic link")
    if regular_size(file) > DESCRIPTION_BYTES:
        raise ValueError(f"zarr.json has more than {DESCRIPTION_BYTES:,} bytes")
    return parse_layout(file.read_bytes())


def parse_layout(data: bytes) -> Layout:
    """Return the layout that the content of a zarr.json describes (ValueError: this program writes no such one)."""
    try:
        document = json.loads(data, object_pairs_hook=_unique)
        shape, dtype = document["shape"], document["attributes"]["dtype"]
        height, compressed = document["chunk_grid"]["configuration"]["chunk_shape"][0], len(document["codecs"]) > 1
    except (KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"zarr.json does not describe an array: {type(error).__name__} {error}") from error
    sized = isinstance(shape, list) and bool(shape) and all(map(_is_size, (height, *shape)))
    if not isinstance(dtype, str) or dtype not in CARRIERS or not sized:
        raise ValueError(f"zarr.json does not describe an array of this store: {str(dtype)[:40]!r}, {str(shape)[:80]}")
    layout = Layout(dtype, tuple(shape), height, compressed)
    row = math.prod(shape[1:])
    if height > shape[0] or row > ROW_ELEMENTS or height * row > max(CHUNK_ELEMENTS, row):
        raise ValueError(f"zarr.json describes chunks of {height:,} rows of {row:,} elements")
    for key in {**document, **(written := layout.document())}:
        if key not in document or key not in written or canonical_json(document[key]) != canonical_json(written[key]):
            raise ValueError(f"zarr.json has another {key} than this program writes")
    return layout


def check_chunk(layout: Layout, number: int, file: ChunkFile) -> None:
    """Check that an open chunk expands to the size in `layout`, before it is read; afterwards it is at its first byte.

    Raises ValueError if it has another size, or its padding is not zeros, and OSError if it cannot be read.
    """
    name, expected = layout.chunk_name(number), layout.chunk_bytes
    size = _expanded(file.read(_HEAD_BYTES) or b"") if layout.compressed else file.seek(0, os.SEEK_END)
    if size != expected:
        raise ValueError(f"{name} holds {size:,} bytes, {expected:,} were expected")
    if not layout.compressed and (padding := (number + 1) * layout.height - layout.shape[0]) > 0:
        file.seek(expected - padding * layout.row_bytes)
        rest = file.read() or b""
        if rest != bytes(len(rest)):
            raise ValueError(f"{name} does not end in zeros")
    file.seek(0)


def regular_size(file: Path) -> int:
    """Return the size of a regular file (ValueError: it is a link or a device; OSError: it is absent)."""
    status = os.lstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file.name} is not a regular file")
    return status.st_size


def _expanded(head: bytes) -> int:
    """Return the decompressed size that the header of a zstd frame declares (RFC 8878, 3.1.1.1)."""
    if head[:4] != _ZSTD or len(head) < 6:
        raise ValueError("a chunk is not a zstd frame")
    flags = head[4]
    single, width = flags & 32, (1 if flags & 32 else 0, 2, 4, 8)[flags >> 6]
    start = 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 3]
    field = head[start : start + width]
    if width == 0 or len(field) < width or flags & 8:
        raise ValueError("a chunk does not declare its decompressed size")
    return int.from_bytes(field, "little") + (256 if width == 2 else 0)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**48


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("zarr.json names a key twice")
    return document
