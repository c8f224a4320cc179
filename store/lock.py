"""One writer at a time: storing, withdrawing, purging and collecting garbage exclude one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import ConflictError, StorageError
from store.permissions import not_writable, why_not_writable

WAIT_SECONDS = 600.0  # seconds that a writer waits for another before it gives up


@contextmanager
def exclusive(path: Path, action: str) -> Iterator[None]:
    """Hold the lock file `path` (created if absent, released by the system when its process dies).

    Raises ConflictError if another process holds it for `WAIT_SECONDS`, StorageError if its folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if why := why_not_writable(path.parent):
            raise not_writable(path.parent, why)
        held = FileLock(path, timeout=WAIT_SECONDS).acquire()
    except Timeout as error:
        raise ConflictError(
            f"{action}: another process has held {path} for {WAIT_SECONDS:.0f} s", "repeat when it has ended"
        ) from error
    except StorageError:
        raise
    except OSError as error:
        raise not_writable(path.parent, error.strerror) from error
    with held:
        yield
