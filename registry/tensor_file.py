"""One safetensors file, written as a stream: tensor by tensor, and no temporary file but one of a known name.

safetensors' own writer takes a random name first, which nothing finds again after a crash.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from registry.dtypes import SAFETENSORS
from registry.errors import StorageError
from registry.progress import Advance
from store.arrays import CARRIERS, Block, flush

PYTORCH = {"format": "pt"}
"""What a model's file says of itself."""


@dataclass(frozen=True)
class Stream:
    """A tensor to write: its blocks are asked for when their turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[Block]]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    @classmethod
    def of(cls, name: str, block: Block, dtype: str) -> "Stream":
        """Return an array in memory, `block` being in the carrier dtype of `dtype`."""
        return cls(name, dtype, block.shape, lambda: [block])


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
    # Wider elements first, so that every tensor begins at a multiple of its element's size.
    streams = sorted(streams, key=lambda stream: (-CARRIERS[stream.dtype][1], stream.name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for stream in streams:
        offsets = [end, end + stream.nbytes]
        header[stream.name] = {
            "dtype": SAFETENSORS[stream.dtype],
            "shape": list(stream.shape),
            "data_offsets": offsets,
        }
        end += stream.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    state = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            file.write(part)
            state.update(part)
        for stream in streams:
            written = 0
            for block in stream.blocks():
                data = block.data.cast("B")
                file.write(data)
                state.update(data)
                written += block.nbytes
                advance(block.nbytes)
            if written != stream.nbytes:
                raise StorageError(f"tensor {stream.name} came to {written:,} bytes, {stream.nbytes:,} were expected")
    return state.hexdigest()


def replace_shard(path: Path, streams: Sequence[Stream], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file in place of what is at `path`, whole or not at all, and flush it to disk.

    Its folder is not made: it may have been deleted meanwhile, with all that was in it.

    Raises:
        StorageError: the disk is full or refuses; what was there stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        write_shard(partial, streams, metadata=metadata)
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}", "free some space, or choose another folder"
        ) from error
