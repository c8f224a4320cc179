"""Files that appear whole or not at all: written beside their place, flushed, and renamed into it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.arrays import flush


@contextmanager
def atomic_file(path: Path, partial: str | None = None, *, durable: bool = True) -> Iterator[Path]:
    """Give a file to write; when the context ends well it replaces `path`, otherwise it is deleted.

    The folder is not created: it may have been deleted meanwhile, with all that was in it.

    Args:
        path: the file.
        partial: name of the file to write, in the same folder; default that of `path` with `.partial` behind it.
        durable: flush file and folder to disk, so that a crash of the system loses neither.

    Raises:
        OSError: the disk is full or refuses; what was at `path` stays.
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
