"""Safetensors files: headers, checked in full before a tensor is read, and files written as a stream of tensors.

The format is that of https://github.com/huggingface/safetensors: 8 bytes with the header's length, little-endian; the
header, a JSON object from tensor name to dtype, shape and offsets; the tensors back to back. safetensors' own writer
writes to a temporary file with a random name, which could not be found again after a crash.
"""

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError, StorageError
from registry.io.disk import atomic_file
from registry.io.dtypes import SAFETENSORS
from registry.io.limits import HEADER_BYTES, HEADER_VALUES
from registry.io.untrusted import parse_json
from registry.progress import Advance
from store.arrays import CARRIERS, ArrayFiles, Block

_LARGEST = 2**48
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Every dtype of the format, few of which can be registered → bits of an element."""


@dataclass(frozen=True)
class Entry:
    """A tensor in the header: dtype in the header's spelling, `begin` and `end` in bytes of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """The tensors of a file by name, and its metadata."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Return the header of a safetensors file (CheckpointError: it is not of this format, or cannot be read)."""
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(8)
            return parse_head(data + file.read(head_bytes(data, size) - 8), size)
    except PermissionError as error:
        hint = f"make it readable: chmod u+r {path}"
        raise CheckpointError(f"{path} cannot be read: permission denied", hint) from error
    except (OSError, ValueError) as error:
        raise not_safetensors(path, error) from error


def header_bytes(path: Path) -> bytes:
    """Return what precedes the tensors of a safetensors file (errors as `read_header`)."""
    read_header(path)
    with path.open("rb") as file:
        data = file.read(8)
        return data + file.read(int.from_bytes(data, "little"))


def not_safetensors(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a file that is not of this format."""
    return CheckpointError(f"{path} is not a safetensors file: {error}", "copy or save the file again")


def head_bytes(start: bytes | bytearray, size: int) -> int:
    """Return the number of bytes before the tensors of a file, from its first 8 bytes (ValueError: too many)."""
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"its header claims {length:,} bytes, the file has {size:,}")
    if length > HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes, the limit is {HEADER_BYTES:,}")
    return 8 + length


def parse_head(head: bytes, size: int) -> Header:
    """Return the header of a file of `size` bytes, of which `head` precedes the tensors (ValueError: it is none)."""
    if not head.startswith(b"{", 8):
        raise ValueError("its header is not a JSON object")
    document, end = parse_json(head[8:], values=HEADER_VALUES), len(head)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is not an object of texts")
    tensors = {name: _entry(name, described, end) for name, described in document.items()}
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise ValueError(f"tensor {name!r} begins at byte {entry.begin:,}, but the previous one ends at {end:,}")
        end = entry.end
    if end != size:
        raise ValueError(f"its tensors end at byte {end:,}, the file at {size:,}")
    return Header(tensors, metadata)


def header_of(data: bytes) -> Header:
    """Return the header of a whole file in memory (ValueError: it is not of this format)."""
    return parse_head(data[: head_bytes(data[:8], len(data))], len(data))


def _entry(name: str, described: object, start: int) -> Entry:
    if not isinstance(described, dict) or described.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name[:200]!r} must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"tensor {name[:200]!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name[:200]!r} has a shape or offsets that are not sizes")
    elements = math.prod(shape)
    if elements * _BITS[dtype] != (offsets[1] - offsets[0]) * 8:
        raise ValueError(
            f"tensor {name[:200]!r} has {offsets[1] - offsets[0]:,} bytes, which does not fit {dtype} of shape "
            f"{str(shape)[:80]}"
        )
    return Entry(dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _are_sizes(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 16
        and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _LARGEST for n in value)
    )


PYTORCH = {"format": "pt"}  # the metadata of a model's file


@dataclass(frozen=True)
class Span:
    """Bytes of a stored array that a tensor contains unchanged, `begin` to `end`; whole rows if zeros follow them."""

    raw: ArrayFiles
    begin: int
    end: int
    padding: int = 0  # bytes of zeros that follow each row of the array
    after: int = 0  # bytes of zeros that follow all

    @property
    def nbytes(self) -> int:
        """Size in bytes, zeros included."""
        padding = (self.end - self.begin) // self.raw.layout.row_bytes * self.padding
        return self.end - self.begin + padding + self.after


@dataclass(frozen=True)
class Stream:
    """A tensor to write, whose blocks are read or computed one by one.

    Attributes:
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
    """Return the bytes before the tensors, in their order in the file, which begin at a multiple of `align` bytes."""
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
    """Write one safetensors file of tensors in any order (errors as `check_size`); an interruption leaves a part."""
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
    """Raise StorageError if a tensor came to another size than that of its stream."""
    if nbytes != stream.nbytes:
        raise StorageError(
            f"tensor {stream.name} came to {nbytes:,} bytes, {stream.nbytes:,} were expected", "reg verify"
        )


def replace_shard(path: Path, streams: Sequence[Stream], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file atomically to a folder that exists, and flush it (StorageError: the disk refuses)."""
    try:
        with atomic_file(path) as fresh:
            write_shard(fresh, streams, metadata=metadata)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}", "free some space, or choose another folder"
        ) from error


def write_at(file: int, data: memoryview, at: int) -> None:
    """Write bytes to a place in a file (OSError: the disk is full or refuses)."""
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def allocate(file: int, nbytes: int) -> None:
    """Allocate the blocks of a file, if the system can: it is written several times as fast (OSError: disk full)."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the errors of file systems without it
            raise
