"""Arrays stored under the digest of their content, in a folder or in an object store."""

from store.arrays.array_store import ArrayStore
from store.arrays.chunk_files import ArrayFiles, blocks_of_rows, fill, flush
from store.arrays.content_digest import Block, new_hash, unreadable
from store.arrays.folder_arrays import FolderArrays
from store.arrays.place import open_arrays
from store.arrays.source import ArraySource, digest_of, rows_per_block
from store.arrays.zarr_layout import CARRIERS, CHUNK_ELEMENTS

__all__ = [
    "CARRIERS",
    "CHUNK_ELEMENTS",
    "ArrayFiles",
    "ArraySource",
    "ArrayStore",
    "Block",
    "FolderArrays",
    "blocks_of_rows",
    "digest_of",
    "fill",
    "flush",
    "new_hash",
    "open_arrays",
    "rows_per_block",
    "unreadable",
]
