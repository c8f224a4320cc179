"""Write permissions: a registry that cannot be written can still be read; the system's refusals become errors."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import StorageError

SPACE = "free some space on that disk, then repeat the command"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def why_not_writable(path: Path) -> str | None:
    """Return the system's reason why the existing `path` cannot be written, or None if it can."""
    if os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return None
    return os.strerror(errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES)


def not_writable(folder: Path, why: str | None) -> StorageError:
    """Return the error for a `folder` that cannot be written."""
    rights = "repeat as a user who may write there; reading (reg list, show, log, verify, export) needs no such right"
    return StorageError(
        f"the folder {folder} cannot be written: {why or 'the system does not say why'}",
        SPACE if why in [os.strerror(number) for number in _FULL] else rights,
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write at `path` into a StorageError; other errors propagate."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in _REFUSED:
            raise
        hint = SPACE if error.errno in _FULL else "repeat as a user who may write there"
        raise StorageError(f"{error.filename or path} cannot be written: {os.strerror(error.errno)}", hint) from error
