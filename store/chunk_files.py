"""Arrays written to and read from their chunk files directly, byte for byte as zarr writes and reads them.

Chunks are flushed one by one, so that several threads can write several arrays at once.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from store.zarr_layout import CARRIERS, Layout, check_chunks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Block = npt.NDArray[np.generic]

ZSTD_LEVEL = 0
"""The level of zstd that is its default."""


def write_array(folder: Path, layout: Layout, blocks: "Iterator[Block]") -> None:
    """Write an array to an empty folder, and flush its files and the folder to disk.

    Args:
        folder: the folder.
        layout: the layout of the array.
        blocks: the rows of each chunk in turn, in little-endian order.

    Raises:
        OSError: the disk is full or refuses.
    """
    _write(folder / "zarr.json", json.dumps(layout.document(), indent=2).encode())
    for number, block in enumerate(blocks):
        padding = (layout.height - len(block)) * layout.row_bytes
        data = block.data.cast("B")
        if layout.compressed:
            _write(layout.chunk(folder, number), _encoded(bytes(data) + bytes(padding) if padding else data))
        else:
            _write(layout.chunk(folder, number), data, bytes(padding))
    flush(folder)


def read_compressed(folder: Path, layout: Layout) -> "Iterator[Block]":
    """Yield the rows of each chunk of a compressed array.

    Raises:
        OSError: a chunk is absent.
        ValueError, RuntimeError: a chunk is damaged.
    """
    import numpy as np
    from numcodecs.zstd import Zstd

    carrier = np.dtype(CARRIERS[layout.dtype][0]).newbyteorder("<")
    for number, start in enumerate(range(0, layout.shape[0], layout.height)):
        check_chunks(layout, folder, [number])  # declares its size before anything is decompressed
        block = np.empty((layout.height, *layout.shape[1:]), carrier)
        Zstd(level=ZSTD_LEVEL, checksum=False).decode(layout.chunk(folder, number).read_bytes(), out=block)
        yield block[: layout.shape[0] - start].astype(CARRIERS[layout.dtype][0], copy=False)


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


def _encoded(data: "bytes | memoryview") -> bytes:
    from numcodecs.zstd import Zstd

    return bytes(Zstd(level=ZSTD_LEVEL, checksum=False).encode(data))
