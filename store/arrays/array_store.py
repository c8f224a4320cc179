"""The contract of an array store: arrays under the digest of their content, written once, never changed.

Each array is a zarr v3 array, in the files `<first two digits>/<digest>/{zarr.json, c.0.0, …}` below the place of the
store. zarr writes them, and reads those that are compressed (`zarr_files.py`). The digest is SHA-256 over the dtype,
the shape and the row-major little-endian bytes, so equal content is stored only once. The file `registry` holds the id
of the catalog that these arrays belong to.

Every array that is written is read back and compared with its digest. A crash leaves an incomplete array that no
catalog row refers to; the next `put` of the same content completes it, and `reg gc` deletes it.
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from store.arrays.chunks import ArrayFiles, fill, raw_blocks
from store.arrays.content_digest import Block, damaged
from store.arrays.layout import CARRIERS, DESCRIPTION, ROW_ELEMENTS, Layout, parse_layout
from store.arrays.source import ArraySource, digest_of, rows_per_block
from store.digest import is_digest
from store.errors import DamagedError, InvalidInputError, NotFoundError, StorageError
from store.permissions import SPACE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from zarr.abc.store import Store

OWNER_FILE = "registry"  # the file beside the arrays that holds the id of their catalog
OWNER_BYTES = 100  # the largest such file that is read
_COPIED = sys.byteorder == "little"  # chunks are in this machine's byte order, so uncompressed ones can be copied
_OWNER = re.compile(rb"[0-9a-f]{32}\n")


class ArrayStore(ABC):
    """Arrays in one place.

    Safe for concurrent readers. Writers and deleters exclude one another through the registry's lock (`store.lock`),
    except that several may write where `concurrent_writers` says so.

    Attributes:
        place: the path or URL of the store.
        concurrent_writers: several processes may write the same array at once.
        writers: arrays that one process writes at once.
        damage_hint: the advice where bytes read back differ from those written.
    """

    place: str
    concurrent_writers = False
    writers = 4
    damage_hint = "check that disk, then repeat the command"

    def owner(self) -> str | None:
        """Return the id of the catalog that these arrays belong to; None if it is absent or incomplete."""
        data = self._owner_data()
        return None if data is None or not _OWNER.fullmatch(data) else data.decode().strip()

    def owner_problem(self) -> str | None:
        """Return one line if the id of the catalog is there and unreadable; None otherwise."""
        if self._owner_data() is None or self.owner() is not None:
            return None
        return f"{self.place}/{OWNER_FILE} is damaged; the next registration writes it again"

    @abstractmethod
    def set_owner(self, owner: str) -> None:
        """Write the id of the catalog that these arrays belong to, atomically (ConflictError: another has done so)."""

    def put(self, source: ArraySource, *, compress: bool = False, digest: str | None = None) -> str:
        """Store `source` unless an intact copy exists, and return its digest, which the caller may know already.

        On return the bytes are in lasting storage, and were read back from there and compared with the digest.
        `compress` is for statistics; weights stay raw so that composing copies bytes.

        Raises:
            InvalidInputError: the dtype is not supported, the array is empty, or a row exceeds `ROW_ELEMENTS`.
            StorageError, DamagedError: the array cannot be written; the bytes read back differ from those written.
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
        layout = Layout(source.dtype, source.shape, rows_per_block(source.shape), compress)
        for overwrite in (not self.concurrent_writers, True):
            try:
                self._write(digest, layout, source.blocks(), overwrite)
            except StorageError:
                raise
            except OSError as error:
                raise StorageError(
                    f"array {digest[:12]} ({source.nbytes:,} bytes) cannot be written below {self.place}: "
                    f"{error.strerror or error}",
                    SPACE,
                ) from error
            if self.is_intact(digest):
                return digest
        raise DamagedError(
            f"array {digest[:12]}: the bytes read back are not the bytes written below {self.place}", self.damage_hint
        )

    def open(self, digest: str, *, cached: bool = True) -> ArraySource:
        """Return `digest` as a source; every full pass over it ends with a check of the digest.

        If `cached`, copies of its files may be read in their place, where the store keeps copies.

        Raises:
            NotFoundError, StorageError: the array does not exist; it cannot be fetched.
            DamagedError: this program writes no such `zarr.json`; during a pass, the bytes do not match the digest.
        """
        files = self._files(digest, cached=cached)
        layout, rows = files.layout, rows_per_block(files.layout.shape)
        is_raw = _COPIED and not layout.compressed and layout.height == rows

        def blocks() -> Iterator[Block]:
            read = raw_blocks(files, rows) if is_raw else self._decoded(files)
            if layout.height != rows:  # written when chunks had another size
                read = _regrouped(read, rows)
            return files.checked(read)

        return ArraySource(layout.dtype, layout.shape, blocks, files if is_raw else None)

    def is_compressed(self, digest: str) -> bool:
        """Return True if the chunks of `digest` are compressed (errors as `open`)."""
        return self._files(digest, cached=True).layout.compressed

    def read(self, digest: str) -> Block:
        """Return the whole array in its carrier dtype, checked against the digest (errors as `open`)."""
        import numpy as np

        blocks = list(self.open(digest).blocks())
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def sample(self, digest: str, rows: "npt.NDArray[np.int64]") -> Block:
        """Return some rows of an uncompressed array, in its carrier dtype, without checking them against the digest.

        Only these rows, given in ascending order, are read, so that sampling many large arrays is cheap
        (DamagedError: the array is missing or damaged; StorageError: it cannot be fetched).
        """
        import numpy as np

        try:
            files = self._files(digest, cached=True)
            layout = files.layout
            if layout.compressed:
                raise ValueError("it is compressed")
            carrier = np.dtype(CARRIERS[layout.dtype][0])
            found = np.empty((len(rows), *layout.shape[1:]), carrier.newbyteorder("<"))
            chunks = rows // layout.height
            for chunk in np.unique(chunks).tolist():
                with files.opened(chunk) as file:
                    for at in np.flatnonzero(chunks == chunk).tolist():
                        file.seek((int(rows[at]) - chunk * layout.height) * layout.row_bytes)
                        fill(file, found[at : at + 1].data.cast("B"))
        except StorageError:
            raise
        except (OSError, ValueError, LookupError, OverflowError) as error:
            raise damaged(digest, f"it cannot be sampled ({error})") from error
        return found.astype(carrier, copy=False)

    def is_intact(self, digest: str) -> bool:
        """Return True if `digest` is present and its bytes match the digest; copies of its files do not count."""
        try:
            for _ in self.open(digest, cached=False).blocks():
                pass
        except (NotFoundError, DamagedError):
            return False
        return True

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Return True if any file of `digest` exists, intact or not."""

    @abstractmethod
    def delete(self, digest: str) -> int:
        """Delete `digest` and copies of its files, and return the bytes freed; 0 if it was absent."""

    @abstractmethod
    def disk_bytes(self, digest: str) -> int:
        """Return the size of the files of `digest` in bytes; 0 if it is absent."""

    @abstractmethod
    def digests(self) -> Iterator[str]:
        """Yield the digest of every array, complete or not, in order; other files are ignored."""

    def keep_copies_of(self, digests: Collection[str]) -> None:
        """Delete copies of files of all other arrays, where the store keeps copies."""
        return

    def drop_copies_of(self, digests: Collection[str]) -> None:
        """Delete copies of files of arrays that were deleted, and make none until they are stored again."""
        return

    def past_deletion(self) -> str | None:
        """Return one line on what deleting leaves behind, such as old versions in a bucket; None if nothing."""
        return None

    def _owner_data(self) -> bytes | None:
        """Return the content of `OWNER_FILE`; None if it is absent, nothing if it is not a file of its size."""
        try:
            return self._read(OWNER_FILE, OWNER_BYTES)
        except ValueError:
            return b""

    def _files(self, digest: str, *, cached: bool) -> ArrayFiles:
        """Return the files of an array (errors as `open`)."""
        try:
            data = self._description(digest, cached=cached)
            if data is None:
                raise NotFoundError(f"array {digest[:12]} is not below {self.place}", "reg verify")
            return self._files_of(digest, parse_layout(data), cached=cached)
        except StorageError:
            raise
        except (OSError, ValueError) as error:
            raise damaged(digest, f"{DESCRIPTION} is unreadable ({error})") from error

    def _decoded(self, files: ArrayFiles) -> Iterator[Block]:
        """Yield the rows of each chunk in the carrier dtype, as zarr decodes them; they are not checked."""
        layout = files.layout
        array = self._array(files, overwrite=False)

        def read(start: int) -> Block:
            block: Block = array[start : start + layout.height]
            return block.astype(CARRIERS[layout.dtype][0], copy=False)

        return files.ahead(read, range(0, layout.shape[0], layout.height))

    def _write(self, digest: str, layout: Layout, blocks: Iterator[Block], overwrite: bool) -> None:
        """Write an array that is absent, incomplete or damaged; `zarr.json` comes last (OSError: it fails)."""
        files, height = self._files_of(digest, layout, cached=False), layout.height
        array = self._array(files, overwrite=overwrite)

        def write(numbered: tuple[int, Block]) -> None:
            number, block = numbered
            array[number * height : number * height + len(block)] = block

        for _ in files.ahead(write, enumerate(blocks)):
            pass
        self._put(f"{key_of(digest)}/{DESCRIPTION}", layout.content(), overwrite=overwrite)

    def _array(self, files: ArrayFiles, *, overwrite: bool) -> Any:
        """Return an array as zarr reads and writes it."""
        from store.arrays.zarr_files import zarr_array  # which loads zarr

        put = partial(self._put, overwrite=overwrite)
        return zarr_array(self._place(), key_of(files.digest), files.layout, files.content, put)

    @abstractmethod
    def _place(self) -> "Store":
        """Return this place as zarr knows it."""

    @abstractmethod
    def _read(self, key: str, most: int) -> bytes | None:
        """Return a small file, None if it is absent (ValueError: it is no file, or larger than `most` bytes)."""

    @abstractmethod
    def _put(self, key: str, data: bytes | memoryview, *, overwrite: bool) -> None:
        """Write a file, and replace one that is there only if `overwrite` (OSError: it cannot be written)."""

    @abstractmethod
    def _description(self, digest: str, *, cached: bool) -> bytes | None:
        """Return the `zarr.json` of an array (errors as `_read`)."""

    @abstractmethod
    def _files_of(self, digest: str, layout: Layout, *, cached: bool) -> ArrayFiles:
        """Return the files that an array of a layout has."""


def key_of(digest: str) -> str:
    """Return the folder of an array below a place, with which keys begin (DamagedError: it is not a digest)."""
    if not is_digest(digest):
        raise DamagedError(f"{digest[:80]!r} is not the digest of an array", "reg verify")
    return f"{digest[:2]}/{digest}"


def _regrouped(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """Yield the same rows in blocks of `rows`, of which the last may have fewer."""
    import numpy as np

    rest: Block | None = None
    for block in blocks:
        rest = block if rest is None else np.concatenate([rest, block])
        while len(rest) >= rows:
            yield rest[:rows]
            rest = rest[rows:]
    if rest is not None and len(rest):
        yield rest
