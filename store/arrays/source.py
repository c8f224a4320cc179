"""Arrays that are read block by block, and their digests."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from store.arrays.chunks import ArrayFiles
from store.arrays.content_digest import Block, little_endian, new_hash
from store.arrays.layout import CARRIERS, CHUNK_ELEMENTS


def rows_per_block(shape: tuple[int, ...]) -> int:
    """Return the number of leading rows in one chunk of an array of `shape` (first axis ≥ 1)."""
    return max(1, min(shape[0], CHUNK_ELEMENTS // max(1, math.prod(shape[1:]))))


@dataclass(frozen=True)
class ArraySource:
    """An array that can be read block by block, more than once.

    Attributes:
        dtype: true dtype, a key of `CARRIERS`.
        shape: at least one axis, every axis ≥ 1.
        blocks: starts a new pass; yields `rows_per_block(shape)` rows at a time, in the carrier dtype.
        raw: its files, if they hold the same bytes uncompressed; reading them does not verify the digest.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Block]]
    raw: ArrayFiles | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes, uncompressed."""
        return math.prod(self.shape) * CARRIERS[self.dtype][1]

    def in_memory(self) -> "ArraySource":
        """Return a source of the same blocks, read now and kept."""
        blocks = list(self.blocks())
        return ArraySource(self.dtype, self.shape, lambda: iter(blocks))

    @classmethod
    def of(cls, data: Block, dtype: str) -> "ArraySource":
        """Return a source for an array in memory; `data` has the carrier dtype of `dtype`."""

        def blocks() -> Iterator[Block]:
            rows = rows_per_block(data.shape)
            for start in range(0, data.shape[0], rows):
                yield data[start : start + rows]

        return cls(dtype, data.shape, blocks)


def digest_of(source: ArraySource) -> str:
    """Return the digest of `source` (64 hexadecimal digits), reading it once."""
    state = new_hash(source.dtype, source.shape)
    for block in source.blocks():
        state.update(little_endian(block).data)
    return state.hexdigest()
