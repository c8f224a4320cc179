"""Arrays in an object store: chunks first, each by a conditional create, then `zarr.json`, which makes it an array.

Nothing is renamed and nothing is locked. Writers of the same array write the same bytes, so who comes second compares
and goes on: several may write at once. An array without `zarr.json` is incomplete; the next `put` of the same content
completes it, and `reg gc` deletes it. Deleting begins with `zarr.json`.

Files are the same, byte for byte, as in a folder. Reading goes through copies in a local folder (`chunk_cache.py`),
but for what is to prove that the bucket has the bytes.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from typing import TypeVar

from store.arrays.array_store import OWNER_BYTES, OWNER_FILE, ArrayStore, check_is_digest, is_digest, parse_owner
from store.arrays.chunk_cache import ChunkCache
from store.arrays.chunk_files import ArrayFiles, decode, encoded_files, encoded_layout, open_chunk
from store.arrays.content_digest import damaged, little_endian
from store.arrays.source import ArraySource, rows_per_block
from store.arrays.zarr_layout import (
    CARRIERS,
    DESCRIPTION,
    DESCRIPTION_BYTES,
    ChunkFile,
    Layout,
    check_chunk,
    parse_layout,
)
from store.errors import ConflictError, NotFoundError, StorageError
from store.object_store import normal_url, open_store, storage_errors

RANGE_BYTES = 8 * 2**20
"""Bytes of a ranged read; larger objects are read by several at once."""

CREATES = 3
"""Tries of a conditional create that times out, which the library does not repeat: the object may be there."""

AHEAD_BYTES, AHEAD_CHUNKS = 64 * 2**20, 4
"""Bytes and number of chunks of one array that are fetched or written at once, at most."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class ObjectArrays(ArrayStore):
    """The arrays below the prefix of a bucket.

    Args:
        url: the URL of the bucket with the prefix.
        cache: copies of chunks that were read; None keeps none.
    """

    concurrent_writers = True
    writers = 8

    def __init__(self, url: str, cache: ChunkCache | None = None) -> None:
        self.url, self.cache = normal_url(url), cache
        self._store = open_store(self.url)

    @property
    def place(self) -> str:
        """The URL."""
        return self.url

    @property
    def damage_hint(self) -> str:
        """The advice where bytes read back differ from those written."""
        return "check the bucket and the way to it, then repeat the command"

    def owner(self) -> str | None:
        """Return the id of the catalog that these arrays belong to; None if the object is absent or incomplete."""
        try:
            data = self._read(OWNER_FILE, most=OWNER_BYTES)
        except ValueError:
            return None
        return None if data is None else parse_owner(data)

    def owner_problem(self) -> str | None:
        """Return one line if the object of the owner is there and unreadable; None otherwise."""
        try:
            is_there = self._read(OWNER_FILE, most=OWNER_BYTES) is not None
        except ValueError:
            is_there = True
        if is_there and self.owner() is None:
            return f"{self.url}/{OWNER_FILE} is damaged; the next registration writes it again"
        return None

    def set_owner(self, owner: str) -> None:
        """Write the id of the catalog that these arrays belong to, unless another catalog does so at the same time.

        Raises:
            ConflictError: another catalog has claimed these arrays meanwhile.
            StorageError: the object cannot be written.
        """
        data = f"{owner}\n".encode()
        if self._create(OWNER_FILE, data) or self.owner() == owner:
            return
        if (other := self.owner()) is not None:
            raise ConflictError(
                f"the arrays below {self.url} belong to another catalog (its id is {other})",
                "name the right catalog with --database or REG_DATABASE, or other arrays with --arrays or REG_ARRAYS",
            )
        self._overwrite(OWNER_FILE, data)

    def has(self, digest: str) -> bool:
        """Return True if any object of `digest` exists, intact or not."""
        check_is_digest(digest)
        return next(self._list(_prefix(digest)), None) is not None

    def delete(self, digest: str) -> int:
        """Delete the objects of `digest` and copies of them, and return the bytes freed; 0 if it was absent."""
        check_is_digest(digest)
        sizes = dict(self._list(_prefix(digest)))
        description = f"{_prefix(digest)}/{DESCRIPTION}"
        for keys in ([key for key in sizes if key == description], [key for key in sizes if key != description]):
            if keys:
                self._delete(keys)
        if self.cache is not None:
            self.cache.drop(digest, for_good=True)
        return sum(sizes.values())

    def disk_bytes(self, digest: str) -> int:
        """Return the size of the objects of `digest` in bytes; 0 if it is absent."""
        check_is_digest(digest)
        return sum(size for _, size in self._list(_prefix(digest)))

    def digests(self) -> Iterator[str]:
        """Yield the digest of every array, complete or not, in order; other objects are ignored."""
        found = set()
        for key, _ in self._list(""):
            parts = key.split("/")
            if len(parts) > 2 and is_digest(parts[1]) and parts[1].startswith(parts[0]) and len(parts[0]) == 2:
                found.add(parts[1])
        yield from sorted(found)

    def keep_copies_of(self, digests: Collection[str]) -> None:
        """Delete copies of chunks of all other arrays."""
        if self.cache is not None:
            self.cache.keep_only(digests)

    def drop_copies_of(self, digests: Collection[str]) -> None:
        """Delete copies of chunks of arrays that were deleted, and make none until they are stored again."""
        for digest in digests:
            check_is_digest(digest)
            if self.cache is not None:
                self.cache.drop(digest, for_good=True)

    def past_deletion(self) -> str | None:
        """Return one line if the bucket keeps old versions of what is deleted, as far as it says so.

        Versions cannot be listed or deleted from here. In buckets of S3 an object with a version id says that they are
        kept; other services do not say.
        """
        import obstore

        try:
            with storage_errors(self.url, "cannot be read", OWNER_FILE):
                version = obstore.head(self._store, OWNER_FILE).get("version")
        except FileNotFoundError:
            return None
        if not self.url.startswith("s3:") or version in (None, "null"):
            return None
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        return (
            f"the bucket {bucket} keeps versions: what was deleted stays there as old versions, below {prefix or '/'}, "
            "until a lifecycle rule (NoncurrentVersionExpiration) or its owner deletes them; "
            f"aws s3api list-object-versions --bucket {bucket} --prefix '{prefix}' lists them"
        )

    def _files(self, digest: str, *, cached: bool) -> ArrayFiles:
        check_is_digest(digest)
        cache = self.cache if cached else None
        data = None if cache is None else cache.read(digest, DESCRIPTION, DESCRIPTION_BYTES)
        if data is not None:
            try:
                return _ObjectFiles(self, digest, parse_layout(data), cache)
            except ValueError:  # the copy is damaged
                self._drop(digest)
        try:
            data = self._read(f"{_prefix(digest)}/{DESCRIPTION}", most=DESCRIPTION_BYTES)
            if data is None:
                raise NotFoundError(f"array {digest[:12]} is not below {self.url}", "reg verify")
            layout = parse_layout(data)
        except ValueError as error:
            raise damaged(digest, f"zarr.json is unreadable ({error})") from error
        if cache is not None:
            cache.keep(digest, DESCRIPTION, data)
        return _ObjectFiles(self, digest, layout, cache)

    def _write(self, source: ArraySource, digest: str, compress: bool) -> None:
        if self.cache is not None:
            self.cache.drop(digest)
            self.cache.allow(digest)
        layout = Layout(source.dtype, source.shape, rows_per_block(source.shape), compress)
        files = encoded_files(layout, map(little_endian, source.blocks()))

        def write(numbered: tuple[int, tuple[str, list[bytes | memoryview]]]) -> None:
            number, (name, parts) = numbered
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            key = f"{_prefix(digest)}/{name}"
            if not self._create(key, data) and not self._holds(key, layout, number, data):
                self._overwrite(key, data)

        for _ in _ahead(write, enumerate(files), _chunks_ahead(layout)):
            pass
        description, key = encoded_layout(layout), f"{_prefix(digest)}/{DESCRIPTION}"
        if not self._create(key, description) and self._read(key) != description:
            self._overwrite(key, description)

    def _holds(self, key: str, layout: Layout, number: int, data: bytes | memoryview) -> bool:
        """Tell whether an object holds a chunk: its bytes, or of a compressed one another frame of the same content."""
        found = self._read(key)
        if found is None or not layout.compressed:
            return found is not None and memoryview(found) == memoryview(data)
        return found == data or _content(found, layout, number) == _content(bytes(data), layout, number)

    def _drop(self, digest: str) -> None:
        if self.cache is not None:
            self.cache.drop(digest)

    def _read(self, key: str, size: int | None = None, *, most: int | None = None) -> bytes | None:
        """Return the content of an object, or None if it is absent.

        Args:
            key: the object.
            size: its size, if it is known; more than `RANGE_BYTES` are read by several ranges at once.
            most: its largest size, where it is not known: a bucket may hold anything.

        Raises:
            ValueError: it is larger.
            StorageError: it cannot be read.
        """
        import obstore

        try:
            with storage_errors(self.url, "cannot be read", key):
                if size is None or size <= RANGE_BYTES:
                    found = obstore.get(self._store, key)
                    if most is not None and found.meta["size"] > most:
                        raise ValueError(f"{key} has {found.meta['size']:,} bytes")
                    return bytes(found.bytes())
                starts = range(0, size, RANGE_BYTES)
                ends = [min(start + RANGE_BYTES, size) for start in starts]
                return b"".join(obstore.get_ranges(self._store, key, starts=[*starts], ends=ends))
        except FileNotFoundError:
            return None

    def _create(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object that does not exist; return False if it does.

        Raises:
            StorageError: it cannot be written.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        for left in reversed(range(CREATES)):
            try:
                with storage_errors(self.url, "cannot be written", key):
                    obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            except StorageError as error:
                if not left or "Timeout" not in str(error.__cause__):
                    raise
            else:
                break
        return True

    def _overwrite(self, key: str, data: bytes | memoryview) -> None:
        import obstore

        with storage_errors(self.url, "cannot be written", key):
            obstore.put(self._store, key, data)

    def _delete(self, keys: list[str]) -> None:
        import obstore

        with storage_errors(self.url, "cannot be deleted", keys[0]):
            obstore.delete(self._store, keys)

    def _list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield key and size of the objects below a prefix."""
        import obstore

        with storage_errors(self.url, "cannot be listed", prefix):
            for batch in obstore.list(self._store, prefix or None, chunk_size=1000):
                for entry in batch:
                    yield entry["path"], entry["size"]


class _ObjectFiles(ArrayFiles):
    """The files of an array in a bucket, read through copies where there is a cache."""

    def __init__(self, store: ObjectArrays, digest: str, layout: Layout, cache: ChunkCache | None) -> None:
        self._arrays, self._digest, self.layout, self._cache = store, digest, layout, cache

    def open(self, number: int) -> ChunkFile:
        """Open one chunk (as `ArrayFiles.open`), which is fetched first unless there is a copy of it."""
        name = self.layout.chunk_name(number)
        if self._cache is not None:
            path = self._cache.path(self._digest, name)
            try:
                copy = open_chunk(path, self.layout, number)
            except FileNotFoundError:
                pass
            except (OSError, ValueError):  # a damaged copy
                path.unlink(missing_ok=True)
            else:
                self._cache.used(path)
                return copy
        size = None if self.layout.compressed else self.layout.chunk_bytes
        data = self._arrays._read(f"{_prefix(self._digest)}/{name}", size, most=2 * self.layout.chunk_bytes + 1024)
        if data is None:
            raise FileNotFoundError(f"{name} is not in the bucket")
        file = BytesIO(data)
        check_chunk(self.layout, number, file)
        if self._cache is not None:
            self._cache.keep(self._digest, name, data)
        return file

    def open_all(self) -> Iterator[ChunkFile]:
        """Open the chunks in turn, while the next ones are fetched."""
        for file in _ahead(self.open, range(self.layout.count), _chunks_ahead(self.layout)):
            with file:
                yield file

    def drop(self) -> None:
        """Delete the copies, which may be damaged where the bucket is not."""
        if self._cache is not None:
            self._cache.drop(self._digest)


def _prefix(digest: str) -> str:
    return f"{digest[:2]}/{digest}"


def _content(frame: bytes, layout: Layout, number: int) -> bytes | None:
    """Return the content of a compressed chunk; None if it is damaged."""
    import numpy as np

    block = np.empty((layout.height, *layout.shape[1:]), np.dtype(CARRIERS[layout.dtype][0]).newbyteorder("<"))
    try:
        check_chunk(layout, number, BytesIO(frame))
        decode(frame, block)
    except (ValueError, RuntimeError):
        return None
    return block.tobytes()


def _chunks_ahead(layout: Layout) -> int:
    return max(1, min(AHEAD_CHUNKS, layout.count, AHEAD_BYTES // layout.chunk_bytes))


def _ahead(function: Callable[[_T], _R], items: Iterable[_T], count: int) -> Iterator[_R]:
    """Yield what a function returns of items, in their order, while it is called for the next ones in other threads.

    Args:
        function: the function.
        items: its arguments, which the calling thread takes one by one.
        count: calls at once; 1 makes none in another thread.
    """
    if count <= 1:
        yield from map(function, items)
        return
    rest, pending = iter(items), deque[Future[_R]]()
    with ThreadPoolExecutor(count, thread_name_prefix="chunks") as pool:
        try:
            pending.extend(pool.submit(function, item) for item in islice(rest, count))
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(function, item) for item in islice(rest, 1))
                yield result
        finally:
            for future in pending:
                if not future.cancel() and future.exception() is None:
                    _close(future.result())


def _close(result: object) -> None:
    """Close a file that nobody took."""
    if isinstance(result, BytesIO) or hasattr(result, "close"):
        result.close()
