"""Headers of safetensors files, checked in full before a tensor is read.

The format is that of https://github.com/huggingface/safetensors: 8 bytes with the header's length, little-endian; the
header, a JSON object from tensor name to dtype, shape and offsets; the tensors back to back.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.limits import HEADER_BYTES, HEADER_VALUES
from registry.io.strict_json import parse_json

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
    """Return the header of a safetensors file whose tensors fill the file exactly.

    Raises:
        CheckpointError: the file is not of this format, or cannot be read.
    """
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(8)
            return parse_head(data + file.read(head_bytes(data, size) - 8), size)
    except PermissionError as error:
        raise CheckpointError(
            f"{path} cannot be read: permission denied", f"make it readable: chmod u+r {path}"
        ) from error
    except (OSError, ValueError) as error:
        raise not_safetensors(path, error) from error


def not_safetensors(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a file that is not of this format."""
    return CheckpointError(f"{path} is not a safetensors file: {error}", "copy or save the file again")


def head_bytes(start: bytes | bytearray, size: int) -> int:
    """Return the number of bytes before the tensors.

    Args:
        start: the first 8 bytes of the file.
        size: the bytes of the file.

    Raises:
        ValueError: the file is too short, or the header too long.
    """
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"its header claims {length:,} bytes, the file has {size:,}")
    if length > HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes, the limit is {HEADER_BYTES:,}")
    return 8 + length


def parse_head(head: bytes, size: int) -> Header:
    """Return the header of a file whose tensors fill it exactly.

    Args:
        head: the bytes before the tensors.
        size: the bytes of the file.

    Raises:
        ValueError: the header is not of this format.
    """
    if not head.startswith(b"{", 8):
        raise ValueError("its header is not a JSON object")
    return _header(parse_json(head[8:], values=HEADER_VALUES), len(head), size)


def _header(document: dict[str, Any], start: int, size: int) -> Header:
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is not an object of texts")
    tensors = {name: _entry(name, described, start) for name, described in document.items()}
    end = start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise ValueError(f"tensor {name!r} begins at byte {entry.begin:,}, but the previous one ends at {end:,}")
        end = entry.end
    if end != size:
        raise ValueError(f"its tensors end at byte {end:,}, the file at {size:,}")
    return Header(tensors, metadata)


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
