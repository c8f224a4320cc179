"""Whether a folder can be written, so that what cannot be is read all the same."""

import errno
import os
from pathlib import Path

from store.errors import StorageError


def why_not_writable(path: Path) -> str | None:
    """Return why the existing `path` cannot be written, in the system's words, or None where it can."""
    if os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return None
    return os.strerror(errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES)


def not_writable(folder: Path, why: str | None) -> StorageError:
    """Return the error that tells that `folder` cannot be written."""
    return StorageError(
        f"the folder {folder} cannot be written: {why or 'the system does not say why'}",
        "repeat as a user who may write there; reading (reg list, show, log, verify, export) works without",
    )
