"""The digest of an array: SHA-256 over the dtype, the shape and the row-major little-endian bytes."""

import hashlib
from typing import TYPE_CHECKING, Any

from store.digest import canonical_json
from store.errors import DamagedError

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


def unreadable(digest: str, error: Exception) -> DamagedError:
    """Return the error for an array whose bytes cannot be read."""
    return damaged(digest, f"unreadable ({error})")


def damaged(digest: str, why: str) -> DamagedError:
    """Return the error for an array that is not as it was stored."""
    return DamagedError(
        f"array {digest[:12]} is damaged: {why}",
        "reg verify (it names the affected experts); adding one of them again from its checkpoint repairs it",
    )
