"""SHA-256 of files."""

import hashlib
from collections.abc import Callable
from pathlib import Path

CHUNK = 2**22
"""Bytes of one read."""


def file_digest(path: Path, advance: Callable[[int], None] = lambda amount: None) -> str:
    """Return the SHA-256 of a file.

    Args:
        path: the file.
        advance: called with the number of bytes after each read.
    """
    state, room = hashlib.sha256(), memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(room):
            state.update(room[:count])
            advance(count)
    return state.hexdigest()
