"""Folders of commands under way, below the home: each is held by its process, so that one left by a crash is known.

A folder has a file `held`, which its process keeps locked (the system lets go of it when the process dies) and which
lists what the folder holds something of: digests of versions or of weights. An opt-out deletes by that.
"""

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from registry.errors import StorageError
from registry.io.file_lock import try_lock
from store.permissions import SPACE, writing

_HELD, _GONE = "held", ".gone"


@dataclass(frozen=True)
class WorkDir:
    """A folder of a command that is under way, or was once.

    Attributes:
        path: the folder, or a file that no command of this program wrote.
        is_held: its process lives; None where nobody ever held it.
        holds: digests of what it holds something of.
    """

    path: Path
    is_held: bool | None
    holds: frozenset[str]


@contextmanager
def temporary(above: Path, holds: Collection[str] = (), *, prefix: str = "") -> Iterator[Path]:
    """Give a folder of its own below `above`, deleted when the context ends.

    Args:
        above: created if absent.
        holds: digests of what it will hold something of.
        prefix: what its name begins with.

    Raises:
        OSError: `above` cannot be written.
    """
    above.mkdir(parents=True, exist_ok=True)
    descriptor = None
    while descriptor is None:  # whoever deletes what nobody holds may be quicker
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
        descriptor = _hold(folder, holds)
        if descriptor is None:
            shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def resumable(above: Path | None, key: str, holds: Collection[str]) -> Iterator[Path | None]:
    """Give the file in which a pass under way is kept, below `above`; it goes when the context ends well.

    Whoever writes it need not mind that its folder goes meanwhile: the pass was opted out of.

    Args:
        above: created if absent; None where passes are not kept.
        key: the digest of what the pass is a function of.
        holds: digests of what the file will hold something of.

    Returns:
        None where nothing is kept, or another process is at the same pass.

    Raises:
        StorageError: `above` cannot be written.
    """
    if above is None:
        yield None
        return
    folder = above / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _hold(folder, holds)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", "free some space on that disk") from error
    if descriptor is None:
        yield None
        return
    file = folder / "state.safetensors"
    try:
        yield file
        file.unlink(missing_ok=True)
    finally:
        if not file.exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def temporary_folder(where: Path | None = None) -> Iterator[Path]:
    """Give a folder below `where`, else in the system's place for such, and delete it with all that is in it.

    Raises:
        StorageError: it cannot be made, or the disk refused what was written into it.
    """
    try:
        place = where or Path(gettempdir())
    except FileNotFoundError as error:
        raise StorageError(str(error), f"{SPACE}, or name another place for temporary files: TMPDIR") from error
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="reg-", dir=place) as folder:
            yield Path(folder)


def work_dirs_in(above: Path) -> list[WorkDir]:
    """Return what is below `above`, by name."""
    found = []
    for path in sorted(above.iterdir()) if above.is_dir() else ():
        try:
            is_held, holds = _holder(path)
        except FileNotFoundError:  # it has just ended
            continue
        found.append(WorkDir(path, is_held, holds))
    return found


def remove(path: Path) -> None:
    """Delete a file, or a folder whoever holds it: nothing can be written into it from the first moment on.

    Raises:
        StorageError: it cannot be deleted.
    """
    gone = path.with_name(f".{path.name}{_GONE}")
    try:
        if gone.exists():  # of an interruption
            shutil.rmtree(gone)
        if path.is_dir() and not path.is_symlink():
            moved = path if path.name.endswith(_GONE) else path.rename(gone)
            shutil.rmtree(moved)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        why = error.strerror or str(error)
        raise StorageError(f"{path} cannot be deleted: {why}", "delete it, then repeat the command") from error


def _hold(folder: Path, holds: Collection[str]) -> int | None:
    """Lock a folder and return what to close, or None where another process has it or has deleted it."""
    file = folder / _HELD
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None
    try:
        if not try_lock(descriptor) or os.fstat(descriptor).st_ino != file.stat().st_ino:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, "".join(f"{digest}\n" for digest in sorted(holds)).encode())
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, FileNotFoundError):
            return None
        raise
    return descriptor


def _holder(path: Path) -> tuple[bool | None, frozenset[str]]:
    """Return whether a folder is held, and what it holds something of."""
    try:
        descriptor = os.open(path / _HELD, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        path.lstat()
        return None, frozenset()
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        return not try_lock(descriptor), frozenset(file.read().split())
