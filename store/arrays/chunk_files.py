"""The files of an array: `zarr.json` and its chunks, byte for byte as zarr writes and reads them.

Whoever reads an array opens its chunks one by one through `ArrayFiles`, wherever they are.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from store.arrays.zarr_layout import CARRIERS, DESCRIPTION, ChunkFile, Layout, check_chunk, regular_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Block = npt.NDArray[np.generic]

ZSTD_LEVEL = 0
"""The level of zstd that is its default."""


class ArrayFiles(ABC):
    """The files of one array, wherever they are.

    Attributes:
        layout: dtype, shape and chunks of the array.
    """

    layout: Layout

    @abstractmethod
    def open(self, number: int) -> ChunkFile:
        """Open one chunk at its first byte, after checking its size; the caller closes it.

        Raises:
            OSError: it is absent, or cannot be read.
            ValueError: it has another size or type than in the layout.
            StorageError: it cannot be fetched.
        """

    def open_all(self) -> Iterator[ChunkFile]:
        """Open the chunks in turn; each is closed before the next (errors as `open`)."""
        for number in range(self.layout.count):
            with self.opened(number) as file:
                yield file

    def drop(self) -> None:
        """Forget copies of chunks: what was read is not what was stored."""
        return

    @contextmanager
    def opened(self, number: int) -> Iterator[ChunkFile]:
        """Open one chunk at its first byte.

        Raises:
            OSError: the chunk is absent, not a regular file, or of the wrong length.
        """
        with ExitStack() as stack:
            try:
                file = self.open(number)
            except ValueError as error:
                raise OSError(str(error)) from error
            stack.callback(file.close)
            yield file


class FolderFiles(ArrayFiles):
    """The files of an array in its folder."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder, self.layout = folder, layout

    def open(self, number: int) -> ChunkFile:
        """Open one chunk (as `ArrayFiles.open`)."""
        return open_chunk(self.layout.chunk(self.folder, number), self.layout, number)


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


def encoded_files(layout: Layout, blocks: "Iterator[Block]") -> "Iterator[tuple[str, list[bytes | memoryview]]]":
    """Yield the name and the bytes, in parts, of each chunk of an array.

    Args:
        layout: the layout of the array.
        blocks: the rows of each chunk in turn, in little-endian order.
    """
    for number, block in enumerate(blocks):
        padding = bytes((layout.height - len(block)) * layout.row_bytes)
        data = block.data.cast("B")
        name = layout.chunk_name(number)
        if layout.compressed:
            yield name, [encoded(bytes(data) + padding if padding else data)]
        else:
            yield name, [data, padding] if padding else [data]


def encoded_layout(layout: Layout) -> bytes:
    """Return the content of zarr.json."""
    return json.dumps(layout.document(), indent=2).encode()


def write_array(folder: Path, layout: Layout, blocks: "Iterator[Block]") -> None:
    """Write an array to an empty folder, and flush its files and the folder to disk.

    Files are flushed one by one, so that several threads can write several arrays at once.

    Args:
        folder: the folder.
        layout: the layout of the array.
        blocks: the rows of each chunk in turn, in little-endian order.

    Raises:
        OSError: the disk is full or refuses.
    """
    _write(folder / DESCRIPTION, encoded_layout(layout))
    for name, parts in encoded_files(layout, blocks):
        _write(folder / name, *parts)
    flush(folder)


def decoded_chunks(files: ArrayFiles) -> "Iterator[Block]":
    """Yield the rows of each chunk of an array, compressed or not, in its carrier dtype.

    Raises:
        OSError: a chunk is absent.
        ValueError, RuntimeError: a chunk is damaged.
        StorageError: a chunk cannot be fetched.
    """
    import numpy as np

    layout = files.layout
    carrier = np.dtype(CARRIERS[layout.dtype][0]).newbyteorder("<")
    for number, file in enumerate(files.open_all()):  # which checks the size that a chunk declares
        data = file.read() or b""
        block = np.empty((layout.height, *layout.shape[1:]), carrier)
        if layout.compressed:
            decode(data, block)
        else:
            block[:] = np.frombuffer(data, carrier).reshape(block.shape)
        yield block[: layout.shape[0] - number * layout.height].astype(CARRIERS[layout.dtype][0], copy=False)


def encoded(data: "bytes | memoryview") -> bytes:
    """Return bytes as a zstd frame."""
    from numcodecs.zstd import Zstd

    return bytes(Zstd(level=ZSTD_LEVEL, checksum=False).encode(data))


def decode(data: bytes, into: "Block") -> None:
    """Decompress a zstd frame into an array of its size (ValueError or RuntimeError: the frame is damaged)."""
    from numcodecs.zstd import Zstd

    Zstd(level=ZSTD_LEVEL, checksum=False).decode(data, out=into)


def flush(path: Path) -> None:
    """Flush one file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: Path, *parts: "bytes | memoryview") -> None:
    with file.open("xb", buffering=0) as stream:
        for part in parts:
            rest = memoryview(part)
            while len(rest):
                rest = rest[stream.write(rest) :]
        os.fsync(stream.fileno())
