"""Files on the disk: written atomically, locked, digested."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.arrays import flush


@contextmanager
def atomic_file(path: Path, partial: str | None = None, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file; it replaces `path` when the context ends, and is deleted if that raises.

    The folder is not created: it may have been deleted meanwhile, with all its files. The temporary file is named
    `partial`, default that of `path` with `.partial` appended. If `durable`, file and folder are flushed to disk, so
    that a crash of the system loses neither (OSError: the disk is full or refuses; the file at `path` is unchanged).
    """
    fresh = path.with_name(partial or f"{path.name}.partial")
    try:
        yield fresh
        if durable:
            flush(fresh)
        fresh.replace(path)
        if durable:
            flush(path.parent)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def try_lock(descriptor: int, *, required: bool = True) -> bool:
    """Lock an open file or folder without waiting, and tell whether no other process holds it.

    The system releases the lock when the process dies. Where the file system has no locks, the result is True, or
    an OSError if it is `required`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if required:
            raise
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file or folder is the one at a path, and not one that was deleted or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


CHUNK = 2**22  # bytes of one read


def file_digest(path: Path, advance: Callable[[int], None] = lambda amount: None) -> str:
    """Return the SHA-256 of a file; `advance` is called with the number of bytes after each read."""
    state, room = hashlib.sha256(), memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(room):
            state.update(room[:count])
            advance(count)
    return state.hexdigest()
