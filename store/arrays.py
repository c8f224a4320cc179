"""Arrays stored under the digest of their content: one zarr v3 array per directory, written once, never changed.

Layout below the root: `<first two digits>/<digest>/{zarr.json, c.0.0, …}`. The digest is SHA-256 over the dtype,
the shape and the row-major little-endian bytes, so equal content is stored only once. The file `registry` holds the
id of the catalog that these arrays belong to.

Writing does not rely on renames: chunks are written in place, flushed, read back and compared with the digest. A crash
leaves an incomplete directory that no catalog row refers to; the next `put` of the same content rewrites it, and
`reg gc` deletes it.
"""

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.chunk_files import flush as flush
from store.chunk_files import read_compressed, write_array
from store.digest import canonical_json
from store.errors import DamagedError, InvalidInputError, NotFoundError, StorageError
from store.permissions import SPACE
from store.raw_chunks import RawArray, fill, raw_form
from store.zarr_layout import CARRIERS as CARRIERS
from store.zarr_layout import CHUNK_ELEMENTS as CHUNK_ELEMENTS
from store.zarr_layout import ROW_ELEMENTS, Layout, check_chunks, read_layout, regular_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Block = npt.NDArray[np.generic]
else:
    Block = Any  # numpy is imported only where arrays are read or written

_DIGEST = re.compile("[0-9a-f]{64}")
_OWNER = re.compile(rb"[0-9a-f]{32}\n")
_OWNER_BYTES = 100


def rows_per_block(shape: tuple[int, ...]) -> int:
    """Return the number of leading rows in one chunk of an array of `shape` (first axis ≥ 1)."""
    return max(1, min(shape[0], CHUNK_ELEMENTS // max(1, math.prod(shape[1:]))))


@dataclass(frozen=True)
class ArraySource:
    """An array that can be read block by block, more than once.

    Attributes:
        dtype: true dtype, a key of `CARRIERS`.
        shape: at least one axis, every axis ≥ 1.
        blocks: starts a new pass; yields `rows_per_block(shape)` rows at a time, in the carrier dtype.
        raw: the same bytes as uncompressed files, if they are stored that way; reading them does not verify the digest.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Block]]
    raw: RawArray | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes, uncompressed."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    def in_memory(self) -> "ArraySource":
        """Return a source of the same blocks, read now and kept."""
        blocks = list(self.blocks())
        return ArraySource(self.dtype, self.shape, lambda: iter(blocks))

    @classmethod
    def of(cls, data: Block, dtype: str) -> "ArraySource":
        """Return a source for an array in memory; `data` has the carrier dtype of `dtype`."""

        def blocks() -> Iterator[Block]:
            rows = rows_per_block(data.shape)
            for start in range(0, data.shape[0], rows):
                yield data[start : start + rows]

        return cls(dtype, data.shape, blocks)


def new_hash(dtype: str, shape: tuple[int, ...]) -> "hashlib._Hash":
    """Return a SHA-256 state that already covers dtype and shape; update it with the row-major little-endian bytes."""
    return hashlib.sha256(canonical_json([dtype, list(shape)]).encode("ascii") + b"\n")


def digest_of(source: ArraySource) -> str:
    """Return the digest of `source` (64 hexadecimal digits), reading it once."""
    state = new_hash(source.dtype, source.shape)
    for block in source.blocks():
        state.update(_little_endian(block).data)
    return state.hexdigest()


class ArrayStore:
    """The arrays below one folder.

    Safe for concurrent readers. Writers and deleters exclude one another through the registry's lock (`store.lock`).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Return the folder of the array `digest`, whether or not it exists.

        Raises:
            DamagedError: `digest` is not a digest, so no path may be built from it.
        """
        if not _DIGEST.fullmatch(digest):
            raise DamagedError(f"{digest[:80]!r} is not the digest of an array", "reg verify")
        return self.root / digest[:2] / digest

    @property
    def owner_file(self) -> Path:
        """The file that holds the id of the catalog."""
        return self.root / "registry"

    def owner(self) -> str | None:
        """Return the id of the catalog that these arrays belong to; None if the file is absent or incomplete."""
        file = self.owner_file
        try:
            data = file.read_bytes() if regular_size(file) <= _OWNER_BYTES else b""
        except (FileNotFoundError, ValueError):
            return None
        return data.decode().strip() if _OWNER.fullmatch(data) else None

    def set_owner(self, owner: str) -> None:
        """Write the id of the catalog that these arrays belong to, atomically."""
        file = self.owner_file
        fresh = file.with_name(f"{file.name}.new")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(f"{owner}\n".encode())
            flush(fresh)
            fresh.replace(file)
            for path in (self.root, self.root.parent):
                flush(path)
        except OSError as error:
            raise StorageError(f"{file} cannot be written: {error.strerror}", SPACE) from error

    def put(self, source: ArraySource, *, compress: bool = False, digest: str | None = None) -> str:
        """Store `source` unless an intact copy exists, and return its digest.

        On return the bytes have been flushed to disk, read back and compared with the digest.

        Args:
            source: the array to store.
            compress: compress with zstd, as for statistics; weights stay raw so that composing copies bytes.
            digest: the digest of `source`, if the caller has computed it already.

        Raises:
            InvalidInputError: the dtype is not supported, the array is empty, or a row exceeds `ROW_ELEMENTS`.
            StorageError: the array cannot be written.
            DamagedError: the bytes read back differ from those written.
        """
        sound = source.dtype in CARRIERS and bool(source.shape) and min(source.shape) >= 1
        if not sound or math.prod(source.shape[1:]) > ROW_ELEMENTS:
            raise InvalidInputError(
                f"cannot store an array of dtype {source.dtype} and shape {list(source.shape)}",
                f"convert it to one of {', '.join(CARRIERS)}, with no axis of length 0",
            )
        digest = digest or digest_of(source)
        if self.is_intact(digest):
            return digest
        try:
            self._write(source, digest, compress)
        except OSError as error:
            shutil.rmtree(self.path(digest), ignore_errors=True)
            raise StorageError(
                f"array {digest[:12]} ({source.nbytes:,} bytes) cannot be written below {self.root}: "
                f"{error.strerror or error}",
                SPACE,
            ) from error
        if not self.is_intact(digest):
            raise DamagedError(
                f"array {digest[:12]}: the bytes read back are not the bytes written below {self.root}",
                "check that disk, then repeat the command",
            )
        return digest

    def open(self, digest: str) -> ArraySource:
        """Return `digest` as a source; every full pass over it ends with a check of the digest.

        Raises:
            NotFoundError: the array does not exist.
            DamagedError: `zarr.json` is not one that this program writes; during a pass, the bytes do not match the
                digest.
        """
        layout, path = self._layout(digest), self.path(digest)
        dtype, shape = layout.dtype, layout.shape
        raw = raw_form(layout, path, digest)
        if raw is not None and layout.height == rows_per_block(shape):
            return ArraySource(dtype, shape, lambda: _checked(digest, dtype, shape, _raw_blocks(raw, raw.height)), raw)
        if layout.compressed and layout.height == rows_per_block(shape):
            return ArraySource(dtype, shape, lambda: _checked(digest, dtype, shape, read_compressed(path, layout)))

        def read() -> Iterator[Block]:
            array, rows = self._array(digest), rows_per_block(shape)
            for start in range(0, shape[0], rows):
                end = min(start + rows, shape[0])
                check_chunks(layout, path, range(start // layout.height, (end - 1) // layout.height + 1))
                yield array[start:end]

        def blocks() -> Iterator[Block]:
            return _checked(digest, dtype, shape, read())

        return ArraySource(dtype, shape, blocks)

    def read(self, digest: str) -> Block:
        """Return the whole array in its carrier dtype, checked against the digest.

        Raises:
            NotFoundError: the array does not exist.
            DamagedError: the array is damaged.
        """
        import numpy as np

        blocks = list(self.open(digest).blocks())
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def sample(self, digest: str, rows: "npt.NDArray[np.int64]") -> Block:
        """Return some rows of an uncompressed array, in its carrier dtype, without checking them against the digest.

        Only these rows are read, without zarr, so that sampling many large arrays is cheap.

        Args:
            digest: the array.
            rows: row numbers in ascending order.

        Raises:
            DamagedError: the array is missing or damaged.
        """
        import numpy as np

        path, parts = self.path(digest), []
        try:
            layout = self._layout(digest)
            if layout.compressed:
                raise ValueError("it is compressed")
            numbers = np.unique(rows // layout.height)
            check_chunks(layout, path, numbers.tolist())
            for chunk in numbers:
                shape = (layout.height, *layout.shape[1:])
                block = np.memmap(
                    layout.chunk(path, int(chunk)), dtype=CARRIERS[layout.dtype][0], mode="r", shape=shape
                )
                parts.append(np.array(block[rows[rows // layout.height == chunk] - chunk * layout.height]))
        except (OSError, ValueError, LookupError, OverflowError) as error:
            raise _damaged(digest, f"it cannot be sampled ({error})") from error
        return np.concatenate(parts)

    def is_intact(self, digest: str) -> bool:
        """Return True if `digest` is present and its bytes match the digest."""
        try:
            for _ in self.open(digest).blocks():
                pass
        except (NotFoundError, DamagedError):
            return False
        return True

    def has(self, digest: str) -> bool:
        """Return True if the folder of `digest` exists, intact or not."""
        return self.path(digest).exists()

    def delete(self, digest: str) -> int:
        """Delete `digest` and return the bytes freed on disk; 0 if it was absent."""
        freed, path = self.disk_bytes(digest), self.path(digest)
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
        return freed

    def disk_bytes(self, digest: str) -> int:
        """Return the size of `digest` on disk in bytes; 0 if it is absent."""
        return sum(file.stat().st_size for file in self.path(digest).rglob("*") if file.is_file())

    def digests(self) -> Iterator[str]:
        """Yield the digest of every array on disk, complete or not, in order; other files are ignored."""
        for path in sorted(self.root.glob("??/*")):
            if _DIGEST.fullmatch(path.name) and path.name.startswith(path.parent.name):
                yield path.name

    def _write(self, source: ArraySource, digest: str, compress: bool) -> None:
        path = self.path(digest)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        layout = Layout(source.dtype, source.shape, rows_per_block(source.shape), compress)
        write_array(path, layout, map(_little_endian, source.blocks()))
        flush(path.parent)
        flush(path.parent.parent)

    def _layout(self, digest: str) -> Layout:
        path = self.path(digest)
        if not path.is_dir():
            raise NotFoundError(f"array {digest[:12]} is not below {self.root}", "reg verify")
        try:
            return read_layout(path)
        except (OSError, ValueError) as error:
            raise _damaged(digest, f"zarr.json is unreadable ({error})") from error

    def _array(self, digest: str) -> Any:
        import zarr
        from zarr.storage import LocalStore

        try:
            return zarr.open_array(LocalStore(self.path(digest), read_only=True), mode="r")
        except Exception as error:  # zarr raises many kinds of errors for a zarr.json that it cannot read
            raise _damaged(digest, f"zarr.json is unreadable ({error})") from error


def blocks_of_rows(raw: RawArray, rows: int) -> Iterator[Block]:
    """Yield an uncompressed array in its carrier dtype, few rows at a time, and check it after the last.

    Args:
        raw: the array.
        rows: rows of a block, at most; every file begins a new block.

    Raises:
        DamagedError: the bytes do not match the digest.
    """
    return _checked(raw.digest, raw.dtype, raw.shape, _raw_blocks(raw, rows))


def check_digest(digest: str, state: "hashlib._Hash") -> None:
    """Check that a hash, begun with `new_hash`, matches the digest of an array.

    Raises:
        DamagedError: it does not match.
    """
    if state.hexdigest() != digest:
        raise _damaged(digest, f"its content has digest {state.hexdigest()[:12]}")


def unreadable(digest: str, error: Exception) -> DamagedError:
    """Return the error for an array whose bytes cannot be read."""
    return _damaged(digest, f"unreadable ({error})")


def _checked(digest: str, dtype: str, shape: tuple[int, ...], blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield blocks, and check them against the digest after the last one."""
    state = new_hash(dtype, shape)
    while True:
        try:
            block = next(blocks, None)
        except Exception as error:  # codecs raise many kinds of errors for damaged bytes
            raise unreadable(digest, error) from error
        if block is None:
            break
        state.update(_little_endian(block).data)
        yield block
    check_digest(digest, state)


def _raw_blocks(raw: RawArray, rows: int) -> Iterator[Block]:
    import numpy as np

    carrier = CARRIERS[raw.dtype][0]
    for number in range(raw.count):
        with raw.opened(number) as file:
            for start in range(0, height := raw.rows(number), rows):
                block = np.empty((min(rows, height - start), *raw.shape[1:]), carrier)
                fill(file, block.data.cast("B"))
                yield block


def _damaged(digest: str, why: str) -> DamagedError:
    return DamagedError(
        f"array {digest[:12]} is damaged: {why}",
        "reg verify (it names the affected experts); adding one of them again from its checkpoint repairs it",
    )


def _little_endian(block: Block) -> Block:
    import numpy as np

    return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
