"""Copies of chunks in a local folder, for arrays that are elsewhere: bounded, and shared by processes.

A copy is a file `<first two digits>/<digest>/<name>`, which appears at once, by a rename. The file `bytes` says how
much the folder holds, at most; it is read and written under a lock, as files are, and space is reserved there before
a file is written. So the limit holds for all processes together, and a crash leaves the figure too large, never too
small. Where the space is used up, files that were not read for the longest time are deleted. A file that is open stays
readable.

Of an array that was deleted for good nothing is kept, even where another process has just fetched a chunk of it: a mark
`gone/<digest>` is made before its copies are deleted, and looked for after a copy has appeared.

A copy is never the only one, and whoever reads it checks it: so nothing here is flushed to disk, and a full disk only
means that nothing is kept.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from store.errors import InvalidInputError

DEFAULT_BYTES = 10 * 2**30  # bytes that are kept unless something else is asked for
BYTES_VARIABLE = "REG_CACHE_BYTES"  # environment variable of the bytes that are kept; 0 keeps nothing
_KEPT = 0.9  # share of the limit to which files are deleted, so that not every new file has others deleted
_FIGURE, _LOCK, _NEW, _GONE = "bytes", "lock", "new-", "gone"


class ChunkCache:
    """The copies below one folder, which is made when the first file is kept; at most `limit` bytes are kept."""

    def __init__(self, folder: Path, limit: int = DEFAULT_BYTES) -> None:
        self.folder, self.limit = folder, limit

    def path(self, digest: str, name: str) -> Path:
        """Return the path of a copy, whether or not it exists."""
        return self.folder / digest[:2] / digest / name

    def read(self, digest: str, name: str, most: int) -> bytes | None:
        """Return the content of a copy of at most `most` bytes; None if there is none."""
        path = self.path(digest, name)
        try:
            with path.open("rb") as file:
                data = file.read(most + 1)
        except OSError:
            return None
        self.used(path)
        return data if len(data) <= most else None

    def used(self, path: Path) -> None:
        """Note that a copy was read now."""
        with suppress(OSError):  # deleted meanwhile
            os.utime(path)

    def keep(self, digest: str, name: str, data: bytes | memoryview) -> None:
        """Keep a copy of a file, unless it is larger than all that may be kept, or the disk is full."""
        path, size = self.path(digest, name), len(data)
        if size > self.limit:
            return
        fresh = path.with_name(f"{_NEW}{uuid4().hex}")
        try:
            with self._locked():  # a file that is counted and not yet there would be missed by who counts again
                self._reserve(size)
                path.parent.mkdir(parents=True, exist_ok=True)
                fresh.write_bytes(data)
                fresh.replace(path)
            if self._mark(digest).exists():
                path.unlink()
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def drop(self, digest: str, *, for_good: bool = False) -> None:
        """Delete all copies of files of one array; `for_good`, nothing of it is kept until `allow`."""
        if for_good and self.folder.exists():
            self._mark(digest).parent.mkdir(exist_ok=True)
            self._mark(digest).touch()
        shutil.rmtree(self.folder / digest[:2] / digest, ignore_errors=True)

    def allow(self, digest: str) -> None:
        """Keep copies of an array again that was deleted for good, and is stored again."""
        self._mark(digest).unlink(missing_ok=True)

    def keep_only(self, digests: Collection[str]) -> None:
        """Delete copies of files of all other arrays."""
        for digest in self.digests():
            if digest not in digests:
                self.drop(digest)
        for mark in self.folder.glob(f"{_GONE}/*"):
            if mark.name in digests:
                mark.unlink(missing_ok=True)

    def digests(self) -> list[str]:
        """Return the digests of arrays of which there are copies."""
        return sorted(name for begin in _names(self.folder) if len(begin) == 2 for name in _names(self.folder / begin))

    def _mark(self, digest: str) -> Path:
        return self.folder / _GONE / digest

    def _reserve(self, size: int) -> None:
        """Count a file that is about to be written; delete others if there is no space for it. The lock is held."""
        held = self._figure() + size
        if held > self.limit:
            held = self._delete_down_to(max(0, int(self.limit * _KEPT) - size)) + size
        (self.folder / _FIGURE).write_text(str(held))

    def _figure(self) -> int:
        try:
            return int((self.folder / _FIGURE).read_text())
        except (OSError, ValueError):
            return sum(size for _, size, _ in self._files())

    def _delete_down_to(self, most: int) -> int:
        """Delete files, those first that were not read for the longest time; return the bytes of those that stay."""
        files = sorted(self._files())
        held = sum(size for _, size, _ in files)
        for _, size, path in files:
            if held <= most:
                break
            with suppress(OSError):  # another process has deleted it
                path.unlink()
            held -= size
            with suppress(OSError):  # it holds others
                path.parent.rmdir()
        return held

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield time of last use, size and path of every file, those of crashed writers too."""
        for digest in self.digests():
            with suppress(OSError), os.scandir(self.folder / digest[:2] / digest) as entries:
                for entry in entries:
                    with suppress(OSError):  # deleted meanwhile, as its folder may be
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime, status.st_size, Path(entry.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / _LOCK):
            yield


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, none if it does not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def cache_bytes() -> int:
    """Return the bytes that the environment says to keep, or the default (InvalidInputError: it is no number)."""
    text = os.environ.get(BYTES_VARIABLE)
    if not text:
        return DEFAULT_BYTES
    if not text.isdecimal():
        raise InvalidInputError(
            f"{BYTES_VARIABLE} is {text[:40]!r}, and not a number of bytes", "set it to a number of bytes, or unset it"
        )
    return int(text)
