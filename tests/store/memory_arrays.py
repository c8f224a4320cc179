"""An array store in memory: what `ArrayStore` promises, in the plainest way, for the contract and as its reference."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from store.arrays import CARRIERS, ArraySource, ArrayStore, Block, digest_of
from store.errors import DamagedError, InvalidInputError, NotFoundError, StorageError


class MemoryArrays(ArrayStore):
    """Arrays in a dictionary. It inherits nothing but the type: every method is its own."""

    def __init__(self) -> None:
        self.root = Path("memory")
        self.held: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        self._owner: str | None = None

    @property
    def place(self) -> str:
        return str(self.root)

    def _files(self, digest: str, *, cached: bool) -> NoReturn:
        raise AssertionError("nothing but the store itself may look for files")

    def _write(self, source: ArraySource, digest: str, compress: bool) -> NoReturn:
        raise AssertionError("every method is its own")

    def owner_problem(self) -> str | None:
        return None

    def owner(self) -> str | None:
        return self._owner

    def set_owner(self, owner: str) -> None:
        self._owner = owner

    def put(self, source: ArraySource, *, compress: bool = False, digest: str | None = None) -> str:
        if source.dtype not in CARRIERS or not source.shape or min(source.shape) < 1:
            raise InvalidInputError(f"cannot store an array of dtype {source.dtype} and shape {list(source.shape)}")
        digest = digest or digest_of(source)
        if self.is_intact(digest):
            return digest
        self.held.pop(digest, None)
        try:
            data = b"".join(np.ascontiguousarray(block).tobytes() for block in source.blocks())
        except OSError as error:
            raise StorageError(
                f"array {digest[:12]} ({source.nbytes:,} bytes) cannot be written below {self.root}: {error.strerror}",
                "free some space on that disk, then repeat the command",
            ) from error
        self.held[digest] = (source.dtype, source.shape, data)
        if not self.is_intact(digest):
            raise DamagedError(f"array {digest[:12]}: the bytes read back are not the bytes written below {self.root}")
        return digest

    def open(self, digest: str, *, cached: bool = True) -> ArraySource:
        if digest not in self.held:
            raise NotFoundError(f"array {digest[:12]} is not below {self.root}", "reg verify")
        dtype, shape, data = self.held[digest]
        source = ArraySource.of(np.frombuffer(bytearray(data), CARRIERS[dtype][0]).reshape(shape), dtype)

        def blocks() -> Iterator[Block]:
            yield from source.blocks()
            if digest_of(source) != digest:
                raise DamagedError(f"array {digest[:12]} is damaged: its content is another", "reg verify")

        return ArraySource(dtype, shape, blocks)

    def read(self, digest: str) -> Block:
        return np.concatenate(list(self.open(digest).blocks()))

    def sample(self, digest: str, rows: npt.NDArray[np.int64]) -> Block:
        if digest not in self.held:
            raise DamagedError(f"array {digest[:12]} is damaged: it cannot be sampled", "reg verify")
        dtype, shape, data = self.held[digest]
        return np.array(np.frombuffer(data, CARRIERS[dtype][0]).reshape(shape)[rows])

    def is_intact(self, digest: str) -> bool:
        try:
            self.read(digest)
        except (NotFoundError, DamagedError):
            return False
        return True

    def has(self, digest: str) -> bool:
        return digest in self.held

    def delete(self, digest: str) -> int:
        freed = self.disk_bytes(digest)
        self.held.pop(digest, None)
        return freed

    def disk_bytes(self, digest: str) -> int:
        return len(self.held[digest][2]) if digest in self.held else 0

    def digests(self) -> Iterator[str]:
        yield from sorted(self.held)

    def damage(self, digest: str, position: int) -> None:
        """Flip a bit of an array."""
        dtype, shape, data = self.held[digest]
        changed = bytearray(data)
        changed[position % len(data)] ^= 4
        self.held[digest] = (dtype, shape, bytes(changed))
