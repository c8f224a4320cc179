"""Places of composed folders: paths, and URLs of buckets."""

from pathlib import Path

from registry.output.bucket_output import BucketOutput
from registry.output.folder_output import FolderOutput
from registry.output.output import Output
from registry.workspace import PathLike
from store.bucket import url_of
from store.object_store import is_url


def output_of(place: PathLike) -> Output:
    """Return the output at a path, or at a URL, which is given as a text.

    Raises:
        InvalidInputError: it is no URL of a bucket.
        StorageError: the library for buckets is not installed.
    """
    url = url_of(place)
    return FolderOutput(Path(place)) if url is None else BucketOutput(url)


def may_exist(place: str) -> bool:
    """Tell whether a composed folder may be at a recorded place: a bucket is not asked."""
    return is_url(place) or Path(place).is_dir()
