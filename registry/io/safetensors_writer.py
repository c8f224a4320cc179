"""One safetensors file, written as a stream, tensor by tensor.

safetensors' own writer writes to a temporary file with a random name, which could not be found again after a crash.
"""

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import StorageError
from registry.io.atomic import atomic_file
from registry.io.dtypes import SAFETENSORS
from registry.progress import Advance
from store.arrays import CARRIERS, Block, RawArray

PYTORCH = {"format": "pt"}
"""The metadata of a model's file."""


@dataclass(frozen=True)
class Span:
    """Bytes of a stored array that a tensor contains unchanged.

    Attributes:
        raw: the array.
        begin: the first byte.
        end: the byte after the last; of whole rows, if zeros follow them.
        padding: bytes of zeros that follow each row of the array.
        after: bytes of zeros that follow all.
    """

    raw: RawArray
    begin: int
    end: int
    padding: int = 0
    after: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes, zeros included."""
        padding = (self.end - self.begin) // self.raw.row_bytes * self.padding
        return self.end - self.begin + padding + self.after


@dataclass(frozen=True)
class Stream:
    """A tensor to write, whose blocks are read or computed one by one.

    Attributes:
        name: its name in the file.
        dtype: its dtype.
        shape: its shape.
        blocks: starts a pass over its blocks.
        spans: the same bytes as consecutive parts of stored arrays and zeros, or None if they are not stored.
        part: of the model (experts, head maps, routers, trunk); parts share no file if the model has several files.
        origin: everything that its bytes depend on, as a JSON value; None if that is not known.
        job: computed tensors of one job are rendered one after another by one thread; without a name each is its own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[Block]]
    spans: Callable[[], Sequence[Span] | None] = lambda: None
    part: str = ""
    origin: Any = None
    job: str = ""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    @classmethod
    def of(cls, name: str, block: Block, dtype: str) -> "Stream":
        """Return the stream of an array in memory, given in the carrier dtype of `dtype`."""
        return cls(name, dtype, block.shape, lambda: [block])


def in_order(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """Return tensors in the order of a file: wider elements first, so that each is aligned to its elements."""
    return tuple(sorted(streams, key=lambda stream: (-CARRIERS[stream.dtype][1], stream.name)))


def head(streams: Iterable[Stream], metadata: Mapping[str, str] = PYTORCH, align: int = 8) -> bytes:
    """Return the bytes before the tensors: 8 bytes for the length of the header, the header.

    Args:
        streams: the tensors, in the order of the file.
        metadata: the header's metadata.
        align: the header ends in spaces, so that the tensors begin at a multiple of so many bytes.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for stream in streams:
        header[stream.name] = {
            "dtype": SAFETENSORS[stream.dtype],
            "shape": list(stream.shape),
            "data_offsets": [end, end + stream.nbytes],
        }
        end += stream.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    return len(text).to_bytes(8, "little") + text


def write_shard(
    path: Path, streams: Sequence[Stream], advance: Advance = lambda amount: None, metadata: Mapping[str, str] = PYTORCH
) -> None:
    """Write one safetensors file: 8 bytes for the length of the header, the header (JSON), the tensors back to back.

    Args:
        path: the file; an interruption leaves it incomplete.
        streams: the tensors, in any order.
        advance: receives the bytes written.
        metadata: the header's metadata.

    Raises:
        StorageError: a tensor has another size than its stream.
    """
    streams = in_order(streams)
    with path.open("wb") as file:
        file.write(head(streams, metadata))
        for stream in streams:
            written = 0
            for block in stream.blocks():
                data = block.data.cast("B")
                file.write(data)
                written += block.nbytes
                advance(block.nbytes)
            check_size(stream, written)


def check_size(stream: Stream, nbytes: int) -> None:
    """Check the size that a tensor came to.

    Raises:
        StorageError: its stream has another.
    """
    if nbytes != stream.nbytes:
        raise StorageError(
            f"tensor {stream.name} came to {nbytes:,} bytes, {stream.nbytes:,} were expected", "reg verify"
        )


def replace_shard(path: Path, streams: Sequence[Stream], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file to `path` atomically, and flush it to disk.

    The folder is not created: it may have been deleted meanwhile, with all its files.

    Raises:
        StorageError: the disk is full or refuses; the file at `path` is unchanged.
    """
    try:
        with atomic_file(path) as fresh:
            write_shard(fresh, streams, metadata=metadata)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}", "free some space, or choose another folder"
        ) from error


def write_at(file: int, data: memoryview, at: int) -> None:
    """Write bytes to a place in a file.

    Raises:
        OSError: the disk is full or refuses.
    """
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def allocate(file: int, nbytes: int) -> None:
    """Allocate the blocks of a file, if the system can: writing is several times as fast then.

    Raises:
        OSError: the disk is full.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the errors of file systems without it
            raise
