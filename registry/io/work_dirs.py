"""Working folders of running commands, below the home, each locked by its process, so that leftovers are recognised.

Each has a file `held`, which its process keeps locked (the system releases the lock when the process dies) and which
lists the digests of the versions or weights that the folder's content comes from: `holds`. An opt-out deletes folders
by it. Parent folders are created if they are absent.
"""

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from registry.errors import StorageError
from registry.io.disk import is_at, try_lock
from store.permissions import SPACE, writing

_HELD, _GONE = "held", ".gone"


@dataclass(frozen=True)
class WorkDir:
    """A working folder of a running or an interrupted command, or a file that no command of this program wrote."""

    path: Path
    is_held: bool | None  # its process is alive; None if it was never locked
    holds: frozenset[str]


@contextmanager
def temporary(above: Path, holds: Collection[str] = (), *, prefix: str = "") -> Iterator[Path]:
    """Yield a new locked folder below `above`, whose name begins with `prefix`; it is deleted when the context ends."""
    above.mkdir(parents=True, exist_ok=True)
    folder, descriptor = _new(above, holds, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def working_folder(parent: Path, holds: Collection[str]) -> Iterator[Path]:
    """Make a folder below `parent`, or in the system's temporary folder if that fails; it is deleted in the end."""
    with ExitStack() as stack:
        try:
            work = stack.enter_context(temporary(parent, holds))
        except OSError:  # a home that cannot be written can still be read
            work = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(writing(work))
        yield work


@contextmanager
def resumable(above: Path | None, key: str, holds: Collection[str]) -> Iterator[Path | None]:
    """Yield the path of a pass's state file below `above`; it is deleted when the context ends without an error.

    It is None if states are not kept (`above` is None), or another process runs the same pass. Its folder may disappear
    meanwhile, if a version was opted out; the state need not be written then. `key` is a digest of everything that the
    pass depends on (StorageError: `above` cannot be written).
    """
    if above is None:
        yield None
        return
    with _resumed(above, key, holds) as folder:
        yield None if folder is None else folder / "state.safetensors"


@contextmanager
def resumable_folder(above: Path | None, key: str, holds: Collection[str]) -> Iterator[Path]:
    """Yield a folder below `above` for the parts of a pass, which stay there after an interruption.

    It is deleted when the context ends without an error, or holds nothing. If another process runs the same pass, the
    folder is a new one; without `above` it is a temporary one, deleted in any case. It may disappear meanwhile, if a
    version was opted out. `key` is as in `resumable` (StorageError: the disk refuses the folder, or a file in it).
    """
    with temporary_folder() if above is None else _resumed(above, key, holds, or_new=True) as folder:
        assert folder is not None
        with writing(folder):
            yield folder


@contextmanager
def _resumed(above: Path, key: str, holds: Collection[str], *, or_new: bool = False) -> Iterator[Path | None]:
    """Lock a pass's folder, which errors leave; if another process has it, yield None, or with `or_new` a new one."""
    folder = above / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _hold(folder, holds)
        if descriptor is None and or_new:
            folder, descriptor = _new(above, holds, "pass-")
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", "free some space on that disk") from error
    if descriptor is None:
        yield None
        return
    is_complete = False
    try:
        yield folder
        is_complete = True
    finally:
        if is_complete or not any(path.name != _HELD for path in folder.glob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder below `parent`, default the system's own; it is deleted afterwards (errors as `writing`)."""
    try:
        above = parent or Path(gettempdir())
    except FileNotFoundError as error:
        raise StorageError(str(error), f"{SPACE}, or name another folder for temporary files: TMPDIR") from error
    with writing(above):
        above.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="reg-", dir=above) as folder:
            yield Path(folder)


def work_dirs_in(above: Path) -> list[WorkDir]:
    """Return the working folders below `above`, by name."""
    work_dirs = []
    for path in sorted(above.iterdir()) if above.is_dir() else ():
        with suppress(FileNotFoundError):  # its command has just ended
            try:
                descriptor = os.open(path / _HELD, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                path.lstat()
                work_dirs.append(WorkDir(path, None, frozenset()))
                continue
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
                work_dirs.append(WorkDir(path, not try_lock(descriptor), frozenset(file.read().split())))
    return work_dirs


def remove(path: Path) -> None:
    """Delete a file, or a folder even if it is locked; it is renamed first, so that nothing more is written into it."""
    gone = path.with_name(f".{path.name}{_GONE}")
    try:
        if gone.exists():  # left by an interruption
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


def _new(above: Path, holds: Collection[str], prefix: str) -> tuple[Path, int]:
    """Make and lock a new folder, and return it with the descriptor to close."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
        if (descriptor := _hold(folder, holds)) is not None:
            return folder, descriptor
        shutil.rmtree(folder, ignore_errors=True)  # garbage collection deleted it before it was locked


def _hold(folder: Path, holds: Collection[str]) -> int | None:
    """Lock a folder and return the descriptor to close, or None if another process has locked or deleted it."""
    file = folder / _HELD
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None
    try:
        if not try_lock(descriptor) or not is_at(descriptor, file):
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, "".join(f"{digest}\n" for digest in sorted(holds)).encode())
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
