"""Folders of format 1: every file has its SHA-256, and tensors begin at a multiple of 8 bytes of their file.

They are read as any other. One that is reproduced is compared with what format 1 would make of the new composition.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from registry.io.files import read_json
from registry.io.hashing import CHUNK
from registry.io.model_folder import MARKER, json_file
from registry.io.tree_digest import PREFIX

FIRST_FORMAT = 1

_ALIGN = 8


def is_weights(name: str) -> bool:
    """Tell whether a file of a composed folder holds tensors."""
    return name.endswith(".safetensors")


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data


def first_weights(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a composed file of weights as they are in format 1: with less space after the header."""
    with path.open("rb") as file:
        text = file.read(int.from_bytes(file.read(8), "little")).rstrip(b" ")
        text += b" " * (-len(text) % _ALIGN)
        yield len(text).to_bytes(8, "little") + text
        while data := file.read(CHUNK):
            yield data


def first_document(folder: Path) -> bytes:
    """Return the `composition.json` of a composed folder as it is in format 1; files of weights are read for it."""
    document = read_json(folder / MARKER)
    files = document["files"]
    for name, digest in files.items():
        if digest.startswith(PREFIX):
            state = hashlib.sha256()
            for data in first_weights(folder / name):
                state.update(data)
            files[name] = state.hexdigest()
    return json_file(document | {"format": FIRST_FORMAT})
