"""Arrays in an object store: chunks first, each by a conditional create, then `zarr.json`, which makes it an array.

Nothing is renamed and nothing is locked. Writers of the same array write the same bytes, so what is there already is
kept, and replaced only if the array is then found damaged: several may write at once. An array without `zarr.json` is
incomplete; the next `put` of the same content completes it, and `reg gc` deletes it. Deleting begins with `zarr.json`.

Files are the same, byte for byte, as in a folder. Reading goes through copies in a local folder (`chunk_cache.py`),
but for what is to prove that the bucket has the bytes.
"""

from collections.abc import Collection, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.arrays.array_store import OWNER_FILE, ArrayStore, key_of
from store.arrays.chunk_cache import ChunkCache, cache_bytes
from store.arrays.chunks import ArrayFiles, ChunkFile, check_chunk, open_chunk
from store.arrays.content_digest import Block
from store.arrays.folder_arrays import FolderArrays
from store.arrays.layout import DESCRIPTION, DESCRIPTION_BYTES, Layout, parse_layout
from store.bucket import Bucket
from store.digest import is_digest
from store.errors import ConflictError
from store.object_store import is_url

if TYPE_CHECKING:
    from zarr.storage import ObjectStore

CHUNKS_AT_ONCE = 4  # chunks of one array that are fetched or written at once, at most


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

    def _place(self) -> "ObjectStore[Any]":
        from zarr.storage import ObjectStore

        return ObjectStore(self.bucket.objects)

    def _read(self, key: str, most: int) -> bytes | None:
        return self.bucket.read(key, most=most)

    def _put(self, key: str, data: bytes | memoryview, *, overwrite: bool) -> None:
        if overwrite:
            self.bucket.put(key, data)
        else:
            self.bucket.create(key, data)

    def _description(self, digest: str, *, cached: bool) -> bytes | None:
        cache = self.cache if cached else None
        if cache is not None and (data := cache.read(digest, DESCRIPTION, DESCRIPTION_BYTES)) is not None:
            try:
                parse_layout(data)
            except ValueError:  # the copy is damaged
                cache.drop(digest)
            else:
                return data
        data = self._read(f"{key_of(digest)}/{DESCRIPTION}", DESCRIPTION_BYTES)
        if cache is not None and data is not None:
            cache.keep(digest, DESCRIPTION, data)
        return data

    def _files_of(self, digest: str, layout: Layout, *, cached: bool) -> ArrayFiles:
        cache = self.cache if cached else None
        drop = (lambda: None) if cache is None else partial(cache.drop, digest)
        return ArrayFiles(digest, layout, partial(self._open_chunk, digest, layout, cache), CHUNKS_AT_ONCE, drop)

    def _open_chunk(self, digest: str, layout: Layout, cache: ChunkCache | None, number: int) -> ChunkFile:
        """Open a chunk, as a copy where there is one (errors as `ArrayFiles.open`)."""
        name = layout.chunk_name(number)
        if cache is not None:
            path = cache.path(digest, name)
            try:
                copy = open_chunk(path, layout, number)
            except FileNotFoundError:
                pass
            except (OSError, ValueError):  # a damaged copy
                path.unlink(missing_ok=True)
            else:
                cache.used(path)
                return copy
        size = None if layout.compressed else layout.chunk_bytes
        data = self.bucket.read(f"{key_of(digest)}/{name}", size, most=2 * layout.chunk_bytes + 1024)
        if data is None:
            raise FileNotFoundError(f"{name} is not in the bucket")
        file = BytesIO(data)
        check_chunk(layout, number, file)
        if cache is not None:
            cache.keep(digest, name, data)
        return file

    def _write(self, digest: str, layout: Layout, blocks: Iterator[Block], overwrite: bool) -> None:
        if self.cache is not None:
            self.cache.drop(digest)
            self.cache.allow(digest)
        super()._write(digest, layout, blocks, overwrite)


def open_arrays(place: str | Path, cache: Path | None = None) -> ArrayStore:
    """Return the array store of a folder, or of the URL of a bucket with a prefix; nothing is read or made there yet.

    `cache` is the folder for copies of chunks of a bucket; None keeps none.

    Raises:
        InvalidInputError: the URL is not that of a bucket, or the size of the cache is not a number.
        StorageError: the settings of the bucket in the environment are not valid.
    """
    if not is_url(str(place)):
        return FolderArrays(Path(place))
    return ObjectArrays(str(place), None if cache is None else ChunkCache(cache, cache_bytes()))
