"""The files of an array: `zarr.json` and its chunks, byte for byte as zarr writes and reads them.

Whoever reads an array opens its chunks one by one through `ArrayFiles`, wherever they are. Uncompressed chunks, as
weights have, are the bytes of whole rows, and can be copied at the speed of the disk.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from store.arrays.content_digest import Block, damaged, little_endian, new_hash, unreadable
from store.arrays.zarr_layout import CARRIERS, ChunkFile, Layout, check_chunk, regular_size
from store.errors import RegError, StorageError

if TYPE_CHECKING:
    import hashlib

ZSTD_LEVEL = 0  # the level of zstd that is its default


class ArrayFiles(ABC):
    """The files of one array, wherever they are; their bytes are not compared with `digest` here."""

    def __init__(self, digest: str, layout: Layout) -> None:
        self.digest, self.layout = digest, layout

    @abstractmethod
    def open(self, number: int) -> ChunkFile:
        """Open one chunk at its first byte, after checking its size; the caller closes it.

        Raises:
            OSError: it is absent, or cannot be read; a StorageError if it cannot be fetched.
            ValueError: it has another size or type than in the layout.
        """

    def open_all(self) -> Iterator[ChunkFile]:
        """Open the chunks in turn; each is closed before the next (errors as `opened`)."""
        for number in range(self.layout.count):
            with self.opened(number) as file:
                yield file

    def drop(self) -> None:
        """Forget copies of chunks: what was read is not what was stored."""
        return

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


def encoded_files(layout: Layout, blocks: Iterator[Block]) -> Iterator[tuple[str, list[bytes | memoryview]]]:
    """Yield name and bytes, in parts, of each chunk of an array; `blocks` are its rows in little-endian order."""
    for number, block in enumerate(blocks):
        padding = bytes((layout.height - len(block)) * layout.row_bytes)
        data = block.data.cast("B")
        parts: list[bytes | memoryview] = [data, padding] if padding else [data]
        if layout.compressed:
            from numcodecs.zstd import Zstd

            parts = [bytes(Zstd(level=ZSTD_LEVEL, checksum=False).encode(b"".join(parts)))]
        yield layout.chunk_name(number), parts


def encoded_layout(layout: Layout) -> bytes:
    """Return the content of zarr.json."""
    return json.dumps(layout.document(), indent=2).encode()


def decoded(layout: Layout, data: bytes) -> Block:
    """Return the rows of a chunk, its padding too, in little-endian order (ValueError, RuntimeError: it is damaged)."""
    import numpy as np

    block = np.empty((layout.height, *layout.shape[1:]), np.dtype(CARRIERS[layout.dtype][0]).newbyteorder("<"))
    if layout.compressed:
        from numcodecs.zstd import Zstd

        Zstd(level=ZSTD_LEVEL, checksum=False).decode(data, out=block)
    else:
        block[:] = np.frombuffer(data, block.dtype).reshape(block.shape)
    return block


def decoded_chunks(files: ArrayFiles) -> Iterator[Block]:
    """Yield the rows of each chunk, compressed or not, in its carrier dtype (errors as `opened` and `decoded`)."""
    layout = files.layout
    for number, file in enumerate(files.open_all()):  # which checks the size that a chunk declares
        block = decoded(layout, file.read() or b"")
        yield block[: layout.rows(number)].astype(CARRIERS[layout.dtype][0], copy=False)


def raw_blocks(files: ArrayFiles, rows: int) -> Iterator[Block]:
    """Yield an uncompressed array in its carrier dtype, `rows` of a file at a time (errors as `opened` and `fill`)."""
    import numpy as np

    layout = files.layout
    for number, file in enumerate(files.open_all()):
        for start in range(0, height := layout.rows(number), rows):
            block = np.empty((min(rows, height - start), *layout.shape[1:]), CARRIERS[layout.dtype][0])
            fill(file, block.data.cast("B"))
            yield block


def blocks_of_rows(files: ArrayFiles, rows: int) -> Iterator[Block]:
    """Yield blocks as `raw_blocks`, and check them after the last (errors as `ArrayFiles.checked`)."""
    return files.checked(raw_blocks(files, rows))


def fill(file: ChunkFile, into: memoryview) -> None:
    """Fill a buffer with the next bytes of a file (OSError: the file ends early, or cannot be read)."""
    while into:
        if not (count := file.readinto(into)):
            raise OSError("a file of it ends early")
        into = into[count:]


def flush(path: Path) -> None:
    """Flush one file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
