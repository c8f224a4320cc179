"""The digest of an array: SHA-256 over the dtype, the shape and the row-major little-endian bytes."""

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from store.digest import canonical_json
from store.errors import DamagedError, RegError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Block = npt.NDArray[np.generic]
else:
    Block = Any  # numpy is imported only where arrays are read or written


def new_hash(dtype: str, shape: tuple[int, ...]) -> "hashlib._Hash":
    """Return a SHA-256 state that already covers dtype and shape; update it with the row-major little-endian bytes."""
    return hashlib.sha256(canonical_json([dtype, list(shape)]).encode("ascii") + b"\n")


def little_endian(block: Block) -> Block:
    """Return a block with its bytes in row-major little-endian order."""
    import numpy as np

    return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))


def check_digest(digest: str, state: "hashlib._Hash", drop: Callable[[], None]) -> None:
    """Check that a hash, begun with `new_hash`, matches the digest of an array (DamagedError, after `drop`, if not)."""
    if state.hexdigest() != digest:
        drop()
        raise damaged(digest, f"its content has digest {state.hexdigest()[:12]}")


def checked(
    digest: str, dtype: str, shape: tuple[int, ...], blocks: Iterator[Block], drop: Callable[[], None]
) -> Iterator[Block]:
    """Yield the blocks of an array, and check them against its digest after the last one.

    `drop` is called before an error of the content is raised (DamagedError: the blocks cannot be decoded, or have
    another digest; StorageError: they cannot be fetched).
    """
    state = new_hash(dtype, shape)
    while True:
        try:
            block = next(blocks, None)
        except RegError:
            raise
        except Exception as error:  # codecs raise many kinds of errors for damaged bytes
            drop()
            raise unreadable(digest, error) from error
        if block is None:
            break
        state.update(little_endian(block).data)
        yield block
    check_digest(digest, state, drop)


def unreadable(digest: str, error: Exception) -> DamagedError:
    """Return the error for an array whose bytes cannot be read."""
    return damaged(digest, f"unreadable ({error})")


def damaged(digest: str, why: str) -> DamagedError:
    """Return the error for an array that is not as it was stored."""
    return DamagedError(
        f"array {digest[:12]} is damaged: {why}",
        "reg verify (it names the affected experts); adding one of them again from its checkpoint repairs it",
    )
