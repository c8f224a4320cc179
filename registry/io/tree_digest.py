"""Tree digests: the identity of a safetensors file, from the digests of its head and of its tensors.

A tree digest is SHA-256 over lines of ASCII text, each with a newline at its end:

    expert-registry safetensors tree 1
    <SHA-256 of the head: the 8 bytes with the header's length, and the header>
    <digest of the first tensor of the header>
    …

The digest of a tensor is that of the array store (`store.arrays.new_hash`), so a stored array that is copied whole
needs no second hash. Everything of the file is covered: its tensors follow one another without a gap. Written as text
a tree digest has the prefix `tree-sha256:`; a digest without a prefix is SHA-256 of a whole file.
"""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from registry.io.disk import CHUNK, file_digest
from registry.io.dtypes import NAMES
from registry.io.safetensors_file import Entry, Header, head_bytes, not_safetensors, parse_head
from registry.progress import Advance
from store.arrays import new_hash

PREFIX = "tree-sha256:"  # of a tree digest written as text
THREADS = 4  # tensors that are hashed at once
_FORM = "expert-registry safetensors tree 1"
_PIECE = 1 << 20


def combine(head: bytes, tensors: Iterable[str]) -> str:
    """Return the tree digest of a file, of the bytes before its tensors and their digests in the header's order."""
    lines = (_FORM, hashlib.sha256(head).hexdigest(), *tensors)
    return PREFIX + hashlib.sha256("".join(f"{line}\n" for line in lines).encode("ascii")).hexdigest()


def tree_digest(path: Path, advance: Advance = lambda amount: None) -> str:
    """Return the tree digest of a file; `advance` receives the bytes read, called by one thread at a time.

    Raises CheckpointError if it is no safetensors file, or has a dtype that no composition has; OSError: unreadable.
    """
    with path.open("rb") as file:
        number, size, lock = file.fileno(), os.fstat(file.fileno()).st_size, Lock()
        try:
            start = file.read(8)
            head = start + file.read(head_bytes(start, size) - 8)
            header = parse_head(head, size)
            advance(len(head))

            def digest(entry: Entry) -> str:
                state, buffer = _tensor_hash(entry), memoryview(bytearray(min(_PIECE, entry.end - entry.begin)))
                for at in range(entry.begin, entry.end, _PIECE):
                    piece = buffer[: entry.end - at]
                    _fill(number, at, piece)
                    state.update(piece)
                    with lock:
                        advance(len(piece))
                return state.hexdigest()

            with ThreadPoolExecutor(THREADS) as pool:
                return combine(head, pool.map(digest, header.tensors.values()))
        except ValueError as error:
            raise not_safetensors(path, error) from error


def digest_like(path: Path, known: str, advance: Advance = lambda amount: None) -> str:
    """Return a tree digest of a file, or the SHA-256 of all of it, as a known one is (errors as `tree_digest`)."""
    return tree_digest(path, advance) if known.startswith(PREFIX) else file_digest(path, advance)


def tree_and_sha256(path: Path, advance: Advance = lambda amount: None) -> tuple[str, str]:
    """Return the tree digest of a file and its SHA-256, reading it once (errors as `tree_digest`)."""
    with path.open("rb") as file:
        tree, whole = TreeHash(path, os.fstat(file.fileno()).st_size), hashlib.sha256()
        while data := file.read(CHUNK):
            tree.update(data)
            whole.update(data)
            advance(len(data))
    return tree.hexdigest(), whole.hexdigest()


class TreeHash:
    """The tree digest of a file of `size` bytes, which come in order, used as a hash of `hashlib`."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._head = bytearray()
        self._header: Header | None = None
        self._digests: dict[str, str] = {}
        self._left: list[tuple[str, Entry]] = []
        self._state = hashlib.sha256()
        self._at = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the file (errors as `tree_digest`)."""
        data = memoryview(data)
        try:
            if self._header is None:
                self._head += data
                data = memoryview(self._begin())
            while len(data):
                name, entry = self._left[-1]  # bytes beyond the last tensor: IndexError
                if self._at == entry.begin:
                    self._state = _tensor_hash(entry)
                part = data[: entry.end - self._at]
                self._state.update(part)
                self._at, data = self._at + len(part), data[len(part) :]
                if self._at == entry.end:
                    self._digests[name] = self._state.hexdigest()
                    self._left.pop()
        except (ValueError, IndexError) as error:
            raise not_safetensors(self._path, error) from error

    def hexdigest(self) -> str:
        """Return the tree digest (CheckpointError: bytes are missing)."""
        if self._header is None or self._left:
            raise not_safetensors(self._path, ValueError("it ends early"))
        return combine(bytes(self._head), (self._digests[name] for name in self._header.tensors))

    def _begin(self) -> bytes:
        """Read the header once it is whole, and return the bytes after it."""
        if len(self._head) < 8 or len(self._head) < (end := head_bytes(self._head[:8], self._size)):
            return b""
        rest = bytes(self._head[end:])
        del self._head[end:]
        self._header, self._at = parse_head(bytes(self._head), self._size), end
        tensors = self._header.tensors.items()
        empty = ((name, entry) for name, entry in tensors if entry.begin == entry.end)
        self._digests = {name: _tensor_hash(entry).hexdigest() for name, entry in empty}
        filled = [(name, entry) for name, entry in tensors if entry.begin < entry.end]
        self._left = sorted(filled, key=lambda item: item[1].begin, reverse=True)
        return rest


def _tensor_hash(entry: Entry) -> "hashlib._Hash":
    if entry.dtype not in NAMES:
        raise ValueError(f"it has a tensor of dtype {entry.dtype}, which no composition has")
    return new_hash(NAMES[entry.dtype], entry.shape)


def _fill(number: int, at: int, into: memoryview) -> None:
    while into:
        if not (count := os.preadv(number, [into], at)):
            raise ValueError("it ends early")
        into, at = into[count:], at + count
