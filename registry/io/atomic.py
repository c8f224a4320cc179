"""Atomic files: written beside their path, flushed to disk, and renamed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.arrays import flush


@contextmanager
def atomic_file(path: Path, partial: str | None = None, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file; it replaces `path` when the context ends, and is deleted if that raises.

    The folder is not created: it may have been deleted meanwhile, with all its files.

    Args:
        path: the file.
        partial: name of the temporary file, in the same folder; default that of `path` with `.partial` appended.
        durable: flush file and folder to disk, so that a crash of the system loses neither.

    Raises:
        OSError: the disk is full or refuses; the file at `path` is unchanged.
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
