"""One writer at a time: storing, withdrawing, purging and collecting garbage exclude one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import ConflictError

WAIT_SECONDS = 600.0
"""How long a writer waits for another before it gives up."""


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` (created if absent, released by the system when its process dies).

    Raises:
        ConflictError: another process held it for `WAIT_SECONDS`.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=WAIT_SECONDS):
            yield
    except Timeout as error:
        raise ConflictError(
            f"{what}: another process has held {path} for {WAIT_SECONDS:.0f} s", "repeat when it has ended"
        ) from error
