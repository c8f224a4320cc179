"""A prefix of a bucket as a flat set of objects: listed, written whole or not at all, read by ranges, deleted.

Files are uploaded in parts, several at a time, and read back in ranges, several at a time, so that memory does not
depend on their size. An object appears when its last part has arrived; parts of an upload that was interrupted stay in
the bucket, unseen, until `abort_uploads`.
"""

import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from store.errors import InvalidInputError, StorageError
from store.object_store import SCHEMES, is_url, normal_url, open_store, storage_errors

if TYPE_CHECKING:
    from obstore import Bytes

PART = 16 << 20
"""Bytes of a part of an upload and of a range that is read; a part is larger where a file has too many."""

MOST_PARTS = 10_000
"""Parts that an upload may have, by the protocol of S3."""

AT_ONCE = 4
"""Parts or ranges on their way at a time."""

PROBE = ".reg-"
"""The beginning of the names of objects that only try whether one can be written."""

_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/[^/]")


def url_of(place: object) -> str | None:
    """Return the URL that a place is, in its recorded form; None for the path of a folder.

    Raises:
        InvalidInputError: it is no such URL, or a `Path` made of one, which has lost a slash.
    """
    text = str(place)
    if is_url(text):
        return normal_url(text)
    if isinstance(place, Path) and _COLLAPSED.match(text):
        raise InvalidInputError(f"{text} is a URL as a Path, which loses a slash", "give the URL as a text")
    return None


class Bucket:
    """The objects directly below a URL; keys are relative to it.

    Args:
        url: as in `store.object_store`.

    Raises:
        InvalidInputError: it is not the URL of a bucket.
        StorageError: the library is not installed, or a setting in the environment is wrong.
    """

    def __init__(self, url: str) -> None:
        self.url = normal_url(url)
        self._store = open_store(self.url)

    def listed(self) -> tuple[dict[str, int], list[str]]:
        """Return key → bytes of the objects directly below the URL, and the prefixes that hold more objects."""
        import obstore

        with storage_errors(self.url, "cannot be listed"):
            found = obstore.list_with_delimiter(self._store)
        return {entry["path"]: entry["size"] for entry in found["objects"] if entry["path"]}, [
            *found["common_prefixes"]
        ]

    def read(self, key: str) -> bytes | None:
        """Return the content of a small object; None if it is absent."""
        import obstore

        try:
            with storage_errors(self.url, "cannot be read", key):
                return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None

    def write(self, key: str, data: bytes) -> None:
        """Write a small object, and read it back.

        Raises:
            StorageError: it cannot be written, or what was read back differs.
        """
        import obstore

        with storage_errors(self.url, "cannot be written", key):
            obstore.put(self._store, key, data, use_multipart=False)
        if self.read(key) != data:
            raise StorageError(
                f"{self.url}/{key}: what was read back is not what was written",
                "repeat the command, or check the bucket",
            )

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one, in one step; tell whether it was written."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            with storage_errors(self.url, "cannot be written", key):
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def upload(self, key: str, path: Path) -> None:
        """Write a file of any size, in parts; the object appears whole or not at all."""
        import obstore

        part = max(PART, -(-path.stat().st_size // MOST_PARTS))
        try:
            with storage_errors(self.url, "cannot be written", key):
                obstore.put(self._store, key, path, chunk_size=part, max_concurrency=AT_ONCE)
        except BaseException:
            with suppress(StorageError):
                self.abort_uploads()
            raise

    def ranges(self, key: str, size: int) -> Iterator["Bytes"]:
        """Yield the bytes of an object from its beginning to its end, by ranges of which several are on their way.

        Raises:
            StorageError: it cannot be read, is absent, or an answer is shorter than was asked for.
        """
        import obstore

        def fetch(start: int) -> "Bytes":
            end = min(start + PART, size)
            try:
                with storage_errors(self.url, "cannot be read", key):
                    data = obstore.get_range(self._store, key, start=start, end=end)
            except FileNotFoundError as error:
                raise StorageError(f"{self.url}/{key} is missing", "repeat the command that wrote it") from error
            if len(data) != end - start:
                raise StorageError(
                    f"{self.url}/{key}: the server sent {len(data):,} of {end - start:,} bytes from {start:,}",
                    "repeat the command",
                )
            return data

        waiting: deque[Future[Bytes]] = deque()
        try:
            for start in range(0, size, PART):
                waiting.append(self._readers.submit(fetch, start))
                if len(waiting) == AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        """Threads that read ranges. The C library keeps memory for each thread there was, so they stay the same."""
        return ThreadPoolExecutor(AT_ONCE, "bucket")

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, one after another in their order; those that are absent do not matter."""
        import obstore

        for key in keys:
            with suppress(FileNotFoundError), storage_errors(self.url, "cannot be deleted", key):
                obstore.delete(self._store, key)

    def check_writable(self) -> None:
        """Write a small object of a new name, and delete it.

        Raises:
            StorageError: the server refuses or does not answer, or there is no such bucket.
        """
        key = f"{PROBE}{uuid.uuid4().hex}"
        self.create(key, b"")
        self.delete([key])

    def abort_uploads(self) -> int:
        """Abort unfinished uploads below the URL, and return their number; 0 where the service ends them by itself."""
        from store.multipart_uploads import abort_uploads  # with urllib, which takes a while

        return abort_uploads(self.url)
