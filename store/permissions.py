"""Whether a folder can be written, so that what cannot be is read all the same; and what the system refuses."""

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
    """Return why the existing `path` cannot be written, in the system's words, or None where it can."""
    if os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return None
    return os.strerror(errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES)


def not_writable(folder: Path, why: str | None) -> StorageError:
    """Return the error that tells that `folder` cannot be written."""
    rights = "repeat as a user who may write there; reading (reg list, show, log, verify, export) works without"
    return StorageError(
        f"the folder {folder} cannot be written: {why or 'the system does not say why'}",
        SPACE if why in [os.strerror(number) for number in _FULL] else rights,
    )


@contextmanager
def writing(place: Path, hint: str | None = None) -> Iterator[None]:
    """Turn what the system refuses to write at `place` into a StorageError; every other error passes.

    `hint` is the next thing to do, if it is another than to free space or to ask for rights.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in _REFUSED:
            raise
        where = error.filename or place
        usual = SPACE if error.errno in _FULL else "repeat as a user who may write there"
        raise StorageError(f"{where} cannot be written: {os.strerror(error.errno)}", hint or usual) from error
