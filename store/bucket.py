"""A prefix of a bucket as a flat set of objects: listed, written whole or not at all, read by ranges, deleted.

Files are uploaded in parts, several at a time, and read back in ranges, several at a time, so that memory does not
depend on their size. An object appears when its last part has arrived; parts of an upload that was interrupted stay in
the bucket, unseen, until a lifecycle rule of the bucket deletes them.
"""

import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from store.errors import InvalidInputError, StorageError
from store.object_store import SCHEMES, is_url, normal_url, open_store, storage_errors

if TYPE_CHECKING:
    from obstore import Bytes

PART = 16 << 20  # bytes of a part of an upload and of a range that is read; a part is larger where a file has too many
MOST_PARTS = 10_000  # parts that an upload may have, by the protocol of S3
AT_ONCE = 4  # parts or ranges on their way at a time
RANGE_BYTES = 8 * 2**20  # bytes of a ranged read; larger objects that are read as a whole are read by several at once
CREATES = 3  # tries of a conditional create that times out, which the library does not repeat: the object may be there
PROBE = ".reg-"  # the beginning of the names of objects that only try whether one can be written
_T = TypeVar("_T")
_R = TypeVar("_R")
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/[^/]")


def url_of(place: object) -> str | None:
    """Return the URL that a place is, in its recorded form; None for the path of a folder.

    Raises InvalidInputError if it is no such URL, or a `Path` made of one, which has lost a slash.
    """
    text = str(place)
    if is_url(text):
        return normal_url(text)
    if isinstance(place, Path) and _COLLAPSED.match(text):
        raise InvalidInputError(f"{text} is a URL as a Path, which loses a slash", "give the URL as a text")
    return None


class Bucket:
    """The objects below a URL (errors as `open_store`); keys are relative to it, also those of `objects`, the store."""

    def __init__(self, url: str) -> None:
        self.url = normal_url(url)
        self.objects = open_store(self.url)

    def listed(self) -> tuple[dict[str, int], list[str]]:
        """Return key → bytes of the objects directly below the URL, and the prefixes that hold more objects."""
        with storage_errors(self.url, "cannot be listed"):
            found = self.objects.list_with_delimiter()
        sizes = {entry["path"]: entry["size"] for entry in found["objects"] if entry["path"]}
        return sizes, [*found["common_prefixes"]]

    def walk(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield key and bytes of all objects below a prefix."""
        with storage_errors(self.url, "cannot be listed", prefix):
            for batch in self.objects.list(prefix or None, chunk_size=1000):
                for entry in batch:
                    yield entry["path"], entry["size"]

    def version_of(self, key: str) -> str | None:
        """Return the version id of an object, where the bucket has versions; None if it has none, or is absent."""
        try:
            with storage_errors(self.url, "cannot be read", key):
                return self.objects.head(key).get("version")
        except FileNotFoundError:
            return None

    def read(self, key: str, size: int | None = None, *, most: int | None = None) -> bytes | None:
        """Return the content of an object; None if it is absent (StorageError: it cannot be read).

        Args:
            size: its size, if it is known; more than `RANGE_BYTES` are read by several ranges at once.
            most: its largest size, where it is not known: a bucket may hold anything (ValueError: it is larger).
        """
        try:
            with storage_errors(self.url, "cannot be read", key):
                if size is None or size <= RANGE_BYTES:
                    found = self.objects.get(key)
                    if most is not None and found.meta["size"] > most:
                        raise ValueError(f"{key} has {found.meta['size']:,} bytes")
                    return bytes(found.bytes())
                starts = range(0, size, RANGE_BYTES)
                ends = [min(start + RANGE_BYTES, size) for start in starts]
                return b"".join(self.objects.get_ranges(key, starts=[*starts], ends=ends))
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object, in place of one that is there (StorageError: it cannot be written)."""
        with storage_errors(self.url, "cannot be written", key):
            self.objects.put(key, data, use_multipart=False)

    def write(self, key: str, data: bytes) -> None:
        """Write a small object, and read it back (StorageError: it cannot be written, or differs then)."""
        self.put(key, data)
        if self.read(key) != data:
            raise StorageError(
                f"{self.url}/{key}: what was read back is not what was written",
                "repeat the command, or check the bucket",
            )

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless there is one, in one step; tell whether it was written (errors as `put`)."""
        from obstore.exceptions import AlreadyExistsError

        for left in reversed(range(CREATES)):
            try:
                with storage_errors(self.url, "cannot be written", key):
                    self.objects.put(key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            except StorageError as error:
                if not left or "Timeout" not in str(error.__cause__):
                    raise
            else:
                break
        return True

    def upload(self, key: str, path: Path) -> None:
        """Write a file of any size, in parts; the object appears whole or not at all."""
        part = max(PART, -(-path.stat().st_size // MOST_PARTS))
        with storage_errors(self.url, "cannot be written", key):
            self.objects.put(key, path, chunk_size=part, max_concurrency=AT_ONCE)

    def ranges(self, key: str, size: int) -> Iterator["Bytes"]:
        """Return the bytes of an object from its beginning to its end, by ranges of which several are on their way.

        Raises StorageError if it cannot be read, is absent, or an answer is shorter than was asked for.
        """

        def fetch(start: int) -> "Bytes":
            end = min(start + PART, size)
            try:
                with storage_errors(self.url, "cannot be read", key):
                    data = self.objects.get_range(key, start=start, end=end)
            except FileNotFoundError as error:
                raise StorageError(f"{self.url}/{key} is missing", "repeat the command that wrote it") from error
            if len(data) != end - start:
                raise StorageError(
                    f"{self.url}/{key}: the server sent {len(data):,} of {end - start:,} bytes from {start:,}",
                    "repeat the command",
                )
            return data

        return ahead(self._readers, AT_ONCE, fetch, range(0, size, PART))

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        """Threads that read ranges. The C library keeps memory for each thread there was, so they stay the same."""
        return ThreadPoolExecutor(AT_ONCE, "bucket")

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, one after another in their order; those that are absent do not matter."""
        for key in keys:
            with suppress(FileNotFoundError), storage_errors(self.url, "cannot be deleted", key):
                self.objects.delete(key)

    def delete_together(self, keys: list[str]) -> None:
        """Delete objects that are there, many with one request."""
        if keys:
            with storage_errors(self.url, "cannot be deleted", keys[0]):
                self.objects.delete(keys)

    def check_writable(self) -> None:
        """Write a small object of a new name, and delete it (StorageError: there is no such bucket, or it refuses)."""
        key = f"{PROBE}{uuid.uuid4().hex}"
        self.create(key, b"")
        self.delete([key])


def ahead(pool: ThreadPoolExecutor, count: int, function: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """Yield what a function returns of items, in their order, while threads of a pool call it for the next `count`.

    The calling thread takes the items one by one. What nobody took in the end is closed, if it can be.
    """
    rest, pending = iter(items), deque[Future[_R]]()
    try:
        pending.extend(pool.submit(function, item) for item in islice(rest, count))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(function, item) for item in islice(rest, 1))
            yield result
    finally:
        for future in pending:
            if not future.cancel() and future.exception() is None and hasattr(result := future.result(), "close"):
                result.close()
