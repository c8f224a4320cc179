"""The bytes of chunks: each is checked before zarr decodes it, and those of weights are read and copied as they are.

No other module knows what a chunk is made of. This one does for two reasons. The codec of zstd allocates what a frame
declares, so its header is read before. And the chunks of weights are the bytes of whole rows: they are read into the
block that is returned, and composing copies them by pieces that stay in the processor's cache, or lets two files share
blocks of the disk. zarr takes three times as long to read the weights of `benchmarks/storage.py`.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from store.arrays.content_digest import Block, damaged, little_endian, new_hash, unreadable
from store.arrays.layout import CARRIERS, Layout
from store.bucket import ahead
from store.errors import RegError, StorageError

if TYPE_CHECKING:
    import hashlib

ChunkFile = FileIO | BytesIO  # an open chunk, at its first byte: a file, or the bytes of one that came from elsewhere
AHEAD_BYTES = 64 * 2**20  # bytes of one array that are read or written at once, at most

_ZSTD = b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 18  # maximum length of the header of a zstd frame (RFC 8878, 3.1.1)
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class ArrayFiles:
    """The chunks of one array, wherever they are; their bytes are not compared with `digest` before `check`.

    Attributes:
        open: opens one chunk at its first byte, after `check_chunk`; the caller closes it (OSError: it is absent, or
            cannot be read; StorageError: it cannot be fetched; ValueError: it has another size or type).
        at_once: chunks that are read or written at once, at most.
        drop: forgets copies of chunks, when what was read is not what was stored.
    """

    digest: str
    layout: Layout
    open: Callable[[int], ChunkFile]
    at_once: int
    drop: Callable[[], None] = lambda: None

    @contextmanager
    def opened(self, number: int) -> Iterator[ChunkFile]:
        """Open one chunk at its first byte (DamagedError: it cannot be opened; StorageError: it cannot be fetched)."""
        try:
            file = self.open(number)
        except StorageError:
            raise
        except (OSError, ValueError) as error:
            self.drop()
            raise unreadable(self.digest, error) from error
        with file:
            yield file

    def content(self, number: int) -> bytes:
        """Return the bytes of a chunk (errors as `open`)."""
        with self.open(number) as file:
            return file.read() or b""

    def ahead(self, function: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Yield what a function returns for each chunk, in order, while threads call it for the next ones."""
        count = min(self.at_once, self.layout.count, AHEAD_BYTES // self.layout.chunk_bytes)
        if count <= 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(count, thread_name_prefix="chunks") as pool:
            yield from ahead(pool, count, function, items)

    def checked(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield the blocks of the array, and check them against its digest after the last one.

        Raises DamagedError if they cannot be decoded or have another digest, StorageError if they cannot be fetched.
        """
        state = new_hash(self.layout.dtype, self.layout.shape)
        while True:
            try:
                block = next(blocks, None)
            except RegError:
                raise
            except Exception as error:  # codecs raise many kinds of errors for damaged bytes
                self.drop()
                raise unreadable(self.digest, error) from error
            if block is None:
                break
            state.update(little_endian(block).data)
            yield block
        self.check(state)

    def check(self, state: "hashlib._Hash") -> None:
        """Check that a hash of all bytes, begun with `new_hash`, matches the digest (DamagedError: it does not)."""
        if state.hexdigest() != self.digest:
            self.drop()
            raise damaged(self.digest, f"its content has digest {state.hexdigest()[:12]}")


def blocks_of_rows(files: ArrayFiles, rows: int) -> Iterator[Block]:
    """Yield an uncompressed array in its carrier dtype, `rows` of a chunk at a time (errors as `checked`)."""
    return files.checked(raw_blocks(files, rows))


def raw_blocks(files: ArrayFiles, rows: int) -> Iterator[Block]:
    """Yield an uncompressed array in its carrier dtype, `rows` of a chunk at a time (errors as `open` and `fill`)."""
    import numpy as np

    layout = files.layout
    for number, file in enumerate(files.ahead(files.open, range(layout.count))):
        with file:
            for start in range(0, height := layout.rows(number), rows):
                block = np.empty((min(rows, height - start), *layout.shape[1:]), CARRIERS[layout.dtype][0])
                fill(file, block.data.cast("B"))
                yield block


def fill(file: ChunkFile, into: memoryview) -> None:
    """Fill a buffer with the next bytes of a file (OSError: the file ends early, or cannot be read)."""
    while into:
        if not (count := file.readinto(into)):
            raise OSError("a file of it ends early")
        into = into[count:]


def open_chunk(path: Path, layout: Layout, number: int) -> FileIO:
    """Open a chunk that is a regular file, neither a link nor a device, unbuffered (errors as `ArrayFiles.open`)."""
    regular_size(path)
    file = FileIO(os.open(path, os.O_RDONLY | os.O_NOFOLLOW))
    try:
        check_chunk(layout, number, file)
    except BaseException:
        file.close()
        raise
    return file


def check_chunk(layout: Layout, number: int, file: ChunkFile) -> None:
    """Check that an open chunk expands to the size in `layout`, before it is read; afterwards it is at its first byte.

    Raises ValueError if it has another size, or its padding is not zeros, and OSError if it cannot be read.
    """
    name, expected = layout.chunk_name(number), layout.chunk_bytes
    size = _expanded(file.read(_HEAD_BYTES) or b"") if layout.compressed else file.seek(0, os.SEEK_END)
    if size != expected:
        raise ValueError(f"{name} holds {size:,} bytes, {expected:,} were expected")
    if not layout.compressed and (padding := (number + 1) * layout.height - layout.shape[0]) > 0:
        file.seek(expected - padding * layout.row_bytes)
        rest = file.read() or b""
        if rest != bytes(len(rest)):
            raise ValueError(f"{name} does not end in zeros")
    file.seek(0)


def regular_size(file: Path) -> int:
    """Return the size of a regular file (ValueError: it is a link or a device; OSError: it is absent)."""
    status = os.lstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file.name} is not a regular file")
    return status.st_size


def _expanded(head: bytes) -> int:
    """Return the decompressed size that the header of a zstd frame declares (RFC 8878, 3.1.1.1)."""
    if head[:4] != _ZSTD or len(head) < 6:
        raise ValueError("a chunk is not a zstd frame")
    flags = head[4]
    single, width = flags & 32, (1 if flags & 32 else 0, 2, 4, 8)[flags >> 6]
    start = 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 3]
    field = head[start : start + width]
    if width == 0 or len(field) < width or flags & 8:
        raise ValueError("a chunk does not declare its decompressed size")
    return int.from_bytes(field, "little") + (256 if width == 2 else 0)
