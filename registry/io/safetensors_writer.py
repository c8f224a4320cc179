"""One safetensors file, written as a stream: tensor by tensor, and no temporary file but one of a known name.

safetensors' own writer takes a random name first, which nothing finds again after a crash.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import StorageError
from registry.io.atomic import atomic_file
from registry.io.dtypes import SAFETENSORS
from registry.progress import Advance
from store.arrays import CARRIERS, Block
from store.raw_chunks import RawArray

PYTORCH = {"format": "pt"}
"""What a model's file says of itself."""


@dataclass(frozen=True)
class Span:
    """Bytes of a stored array that stand in a tensor as they are, from `begin` up to `end`."""

    raw: RawArray
    begin: int
    end: int


@dataclass(frozen=True)
class Stream:
    """A tensor to write: its blocks are asked for when their turn comes.

    Attributes:
        name: its name in the file.
        dtype: its dtype.
        shape: its shape.
        blocks: starts a pass over its blocks.
        spans: the same bytes as parts of stored arrays, one after the other, or None where there are no such.
        part: what kind of tensor it is; kinds do not share a file where there are several.
        origin: what its bytes are a function of, as JSON has it; None where that is not known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[Block]]
    spans: Callable[[], Sequence[Span] | None] = lambda: None
    part: str = ""
    origin: Any = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    @classmethod
    def of(cls, name: str, block: Block, dtype: str) -> "Stream":
        """Return an array in memory, `block` being in the carrier dtype of `dtype`."""
        return cls(name, dtype, block.shape, lambda: [block])


def in_order(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """Return tensors as they stand in a file: wider elements first, each at a multiple of its element."""
    return tuple(sorted(streams, key=lambda stream: (-CARRIERS[stream.dtype][1], stream.name)))


def head(streams: Iterable[Stream], metadata: Mapping[str, str] = PYTORCH) -> bytes:
    """Return what comes before the tensors, which are in order: 8 bytes for the length of the header, the header."""
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
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_shard(
    path: Path, streams: Sequence[Stream], advance: Advance = lambda amount: None, metadata: Mapping[str, str] = PYTORCH
) -> str:
    """Write one safetensors file: 8 bytes for the length of the header, the header (JSON), the tensors back to back.

    Args:
        path: the file; half of it is there if this is interrupted.
        streams: what to write, in any order.
        advance: told of the bytes written.
        metadata: the header's own texts.

    Returns:
        SHA-256 of the file.
    """
    streams = in_order(streams)
    begin = head(streams, metadata)
    state = hashlib.sha256(begin)
    with path.open("wb") as file:
        file.write(begin)
        for stream in streams:
            written = 0
            for block in stream.blocks():
                data = block.data.cast("B")
                file.write(data)
                state.update(data)
                written += block.nbytes
                advance(block.nbytes)
            if written != stream.nbytes:
                raise StorageError(
                    f"tensor {stream.name} came to {written:,} bytes, {stream.nbytes:,} were expected",
                    "run: reg verify",
                )
    return state.hexdigest()


def replace_shard(path: Path, streams: Sequence[Stream], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file in place of what is at `path`, whole or not at all, and flush it to disk.

    Its folder is not made: it may have been deleted meanwhile, with all that was in it.

    Raises:
        StorageError: the disk is full or refuses; what was there stays.
    """
    try:
        with atomic_file(path) as fresh:
            write_shard(fresh, streams, metadata=metadata)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}", "free some space, or choose another folder"
        ) from error
