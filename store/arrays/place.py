"""The array store of a path, or of the URL of a bucket."""

from pathlib import Path

from store.arrays.array_store import ArrayStore
from store.arrays.chunk_cache import ChunkCache, cache_bytes
from store.arrays.folder_arrays import FolderArrays
from store.arrays.object_arrays import ObjectArrays
from store.object_store import is_url


def open_arrays(place: str | Path, cache: Path | None = None) -> ArrayStore:
    """Return the array store of a folder, or of the URL of a bucket with a prefix; nothing is read or made there yet.

    Args:
        cache: the folder for copies of chunks of a bucket; None keeps none.

    Raises:
        InvalidInputError: the URL is not that of a bucket, or the size of the cache is not a number.
        StorageError: the library for object stores is not installed, or its settings are wrong.
    """
    if not is_url(str(place)):
        return FolderArrays(Path(place))
    return ObjectArrays(str(place), None if cache is None else ChunkCache(cache, cache_bytes()))
