"""The array store of a path or of the URL of a bucket."""

from pathlib import Path

from store.arrays.array_store import ArrayStore
from store.arrays.folder_arrays import FolderArrays


def is_url(place: str) -> bool:
    """Tell whether a place is a URL, not a path."""
    return "://" in place


def open_arrays(place: str | Path, cache: Path | None = None) -> ArrayStore:
    return FolderArrays(Path(place))
