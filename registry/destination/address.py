"""Addresses of composed folders: paths, and URLs of buckets."""

from pathlib import Path

from registry.destination.bucket import BucketDestination
from registry.destination.destination import Destination
from registry.destination.folder import FolderDestination
from registry.workspace import PathLike
from store.bucket import url_of
from store.object_store import is_url


def destination_of(address: PathLike) -> Destination:
    """Return the destination at a path, or at a URL, which is given as a text.

    Raises:
        InvalidInputError: it is no URL of a bucket.
        StorageError: the library for buckets is not installed.
    """
    url = url_of(address)
    return FolderDestination(Path(address)) if url is None else BucketDestination(url)


def may_exist(address: str) -> bool:
    """Tell whether a composed folder may be at a recorded address: a bucket is not asked."""
    return is_url(address) or Path(address).is_dir()
