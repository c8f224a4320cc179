"""The `zarr.json` of an array: only what this program writes is accepted, so that zarr tries no other codec or type.

That of an untrusted array may describe anything. It is read as JSON here and compared key by key with what `ArrayStore`
writes; zarr gets the document made here.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from store.digest import canonical_json

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
    "float8_e4m3fn": ("uint8", 1),
}
"""True dtype → (the dtype zarr stores, bytes per element). zarr has no bfloat16 or float8: their bits are stored."""


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
        """Return what zarr.json says."""
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

    def content(self) -> bytes:
        """Return zarr.json as zarr writes it."""
        return json.dumps(self.document(), indent=2).encode()


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


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**48


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("zarr.json names a key twice")
    return document
