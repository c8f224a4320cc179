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
    state = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            state.update(data)
            advance(len(data))
    return state.hexdigest()
