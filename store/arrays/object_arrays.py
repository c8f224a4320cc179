"""Arrays in an object store: chunks first, each by a conditional create, then `zarr.json`, which makes it an array.

Nothing is renamed and nothing is locked. Writers of the same array write the same bytes, so who comes second compares
and goes on: several may write at once. An array without `zarr.json` is incomplete; the next `put` of the same content
completes it, and `reg gc` deletes it. Deleting begins with `zarr.json`.

Files are the same, byte for byte, as in a folder. Reading goes through copies in a local folder (`chunk_cache.py`),
but for what is to prove that the bucket has the bytes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from store.arrays.array_store import OWNER_BYTES, OWNER_FILE, ArrayStore, key_of
from store.arrays.chunk_cache import ChunkCache, cache_bytes
from store.arrays.chunk_files import ArrayFiles, decoded, encoded_files, encoded_layout, open_chunk
from store.arrays.content_digest import Block, damaged
from store.arrays.folder_arrays import FolderArrays
from store.arrays.zarr_layout import DESCRIPTION, DESCRIPTION_BYTES, ChunkFile, Layout, check_chunk, parse_layout
from store.bucket import Bucket, ahead
from store.digest import is_digest
from store.errors import ConflictError, NotFoundError
from store.object_store import is_url

AHEAD_BYTES, AHEAD_CHUNKS = 64 * 2**20, 4
"""Bytes and number of chunks of one array that are fetched or written at once, at most."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class ObjectArrays(ArrayStore):
    """The arrays below the prefix of a bucket; `cache` keeps copies of chunks that were read, if there is one."""

    concurrent_writers = True
    writers = 8
    damage_hint = "check the bucket and the way to it, then repeat the command"

    def __init__(self, url: str, cache: ChunkCache | None = None) -> None:
        self.bucket, self.cache = Bucket(url), cache
        self.place = self.bucket.url

    def set_owner(self, owner: str) -> None:
        data = f"{owner}\n".encode()
        if self.bucket.create(OWNER_FILE, data) or self.owner() == owner:
            return
        if (other := self.owner()) is not None:
            raise ConflictError(
                f"the arrays below {self.place} belong to another catalog (its id is {other})",
                "name the right catalog with --database or REG_DATABASE, or other arrays with --arrays or REG_ARRAYS",
            )
        self.bucket.put(OWNER_FILE, data)

    def has(self, digest: str) -> bool:
        return next(self.bucket.walk(key_of(digest)), None) is not None

    def delete(self, digest: str) -> int:
        sizes = dict(self.bucket.walk(key_of(digest)))
        description = f"{key_of(digest)}/{DESCRIPTION}"
        self.bucket.delete_together([key for key in sizes if key == description])
        self.bucket.delete_together([key for key in sizes if key != description])
        self.drop_copies_of([digest])
        return sum(sizes.values())

    def disk_bytes(self, digest: str) -> int:
        return sum(size for _, size in self.bucket.walk(key_of(digest)))

    def digests(self) -> Iterator[str]:
        found = set()
        for key, _ in self.bucket.walk():
            parts = key.split("/")
            if len(parts) > 2 and is_digest(parts[1]) and parts[0] == parts[1][:2]:
                found.add(parts[1])
        yield from sorted(found)

    def keep_copies_of(self, digests: Collection[str]) -> None:
        if self.cache is not None:
            self.cache.keep_only(digests)

    def drop_copies_of(self, digests: Collection[str]) -> None:
        if self.cache is not None:
            for digest in digests:
                key_of(digest)  # a check
                self.cache.drop(digest, for_good=True)

    def past_deletion(self) -> str | None:
        # Versions cannot be listed or deleted from here. Only S3 says, by a version id, that they are kept.
        version = self.bucket.version_of(OWNER_FILE)
        if not self.place.startswith("s3:") or version in (None, "null"):
            return None
        bucket, _, prefix = self.place.removeprefix("s3://").partition("/")
        return (
            f"the bucket {bucket} keeps versions: what was deleted stays there as old versions, below {prefix or '/'}, "
            "until a lifecycle rule (NoncurrentVersionExpiration) or its owner deletes them; "
            f"aws s3api list-object-versions --bucket {bucket} --prefix '{prefix}' lists them"
        )

    def _owner_data(self) -> bytes | None:
        try:
            return self.bucket.read(OWNER_FILE, most=OWNER_BYTES)
        except ValueError:
            return b""

    def _files(self, digest: str, *, cached: bool) -> ArrayFiles:
        key, cache = key_of(digest), self.cache if cached else None
        if cache is not None and (data := cache.read(digest, DESCRIPTION, DESCRIPTION_BYTES)) is not None:
            try:
                return _ObjectFiles(digest, parse_layout(data), self.bucket, cache)
            except ValueError:  # the copy is damaged
                cache.drop(digest)
        try:
            data = self.bucket.read(f"{key}/{DESCRIPTION}", most=DESCRIPTION_BYTES)
            if data is None:
                raise NotFoundError(f"array {digest[:12]} is not below {self.place}", "reg verify")
            layout = parse_layout(data)
        except ValueError as error:
            raise damaged(digest, f"zarr.json is unreadable ({error})") from error
        if cache is not None:
            cache.keep(digest, DESCRIPTION, data)
        return _ObjectFiles(digest, layout, self.bucket, cache)

    def _write(self, digest: str, layout: Layout, blocks: Iterator[Block]) -> None:
        if self.cache is not None:
            self.cache.drop(digest)
            self.cache.allow(digest)
        bucket, prefix = self.bucket, key_of(digest)

        def write(numbered: tuple[int, tuple[str, list[bytes | memoryview]]]) -> None:
            number, (name, parts) = numbered
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            key = f"{prefix}/{name}"
            if not bucket.create(key, data) and not _is_chunk(bucket.read(key), layout, number, data):
                bucket.put(key, data)

        for _ in _ahead(write, enumerate(encoded_files(layout, blocks)), layout):
            pass
        description, key = encoded_layout(layout), f"{prefix}/{DESCRIPTION}"
        if not bucket.create(key, description) and bucket.read(key) != description:
            bucket.put(key, description)


class _ObjectFiles(ArrayFiles):
    """The files of an array in a bucket, read through copies where there is a cache."""

    def __init__(self, digest: str, layout: Layout, bucket: Bucket, cache: ChunkCache | None) -> None:
        super().__init__(digest, layout)
        self._bucket, self._cache = bucket, cache

    def open(self, number: int) -> ChunkFile:
        name = self.layout.chunk_name(number)
        if self._cache is not None:
            path = self._cache.path(self.digest, name)
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
        data = self._bucket.read(f"{key_of(self.digest)}/{name}", size, most=2 * self.layout.chunk_bytes + 1024)
        if data is None:
            raise FileNotFoundError(f"{name} is not in the bucket")
        file = BytesIO(data)
        check_chunk(self.layout, number, file)
        if self._cache is not None:
            self._cache.keep(self.digest, name, data)
        return file

    def open_all(self) -> Iterator[ChunkFile]:
        for file in _ahead(self.open, range(self.layout.count), self.layout):
            with file:
                yield file

    def drop(self) -> None:
        if self._cache is not None:
            self._cache.drop(self.digest)


def open_arrays(place: str | Path, cache: Path | None = None) -> ArrayStore:
    """Return the array store of a folder, or of the URL of a bucket with a prefix; nothing is read or made there yet.

    `cache` is the folder for copies of chunks of a bucket; None keeps none.

    Raises:
        InvalidInputError: the URL is not that of a bucket, or the size of the cache is not a number.
        StorageError: the library for object stores is not installed, or its settings are wrong.
    """
    if not is_url(str(place)):
        return FolderArrays(Path(place))
    return ObjectArrays(str(place), None if cache is None else ChunkCache(cache, cache_bytes()))


def _is_chunk(found: bytes | None, layout: Layout, number: int, data: bytes | memoryview) -> bool:
    """Tell whether an object holds a chunk: its bytes, or of a compressed one another frame of the same content."""
    if found is None or memoryview(found) == memoryview(data):
        return found is not None
    if not layout.compressed:
        return False
    try:
        check_chunk(layout, number, BytesIO(found))
        return decoded(layout, found).tobytes() == decoded(layout, bytes(data)).tobytes()
    except (ValueError, RuntimeError):  # it is damaged
        return False


def _ahead(function: Callable[[_T], _R], items: Iterable[_T], layout: Layout) -> Iterator[_R]:
    """Yield what a function returns for each chunk of an array, as `ahead`; without threads where but one fits."""
    count = min(AHEAD_CHUNKS, layout.count, AHEAD_BYTES // layout.chunk_bytes)
    if count <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="chunks") as pool:
        yield from ahead(pool, count, function, items)
