"""Arrays in a folder: files are written in place, flushed to disk, read back and compared with the digest.

A crash leaves an incomplete folder; the next `put` of the same content writes it again.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from store.arrays.array_store import OWNER_FILE, ArrayStore, key_of
from store.arrays.chunks import ArrayFiles, open_chunk, regular_size
from store.arrays.content_digest import Block
from store.arrays.layout import DESCRIPTION, DESCRIPTION_BYTES, Layout
from store.digest import is_digest
from store.errors import StorageError
from store.permissions import SPACE

if TYPE_CHECKING:
    from zarr.storage import LocalStore


class FolderArrays(ArrayStore):
    """The arrays below one folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.place = root, str(root)

    def path(self, digest: str) -> Path:
        """Return the folder of an array, whether or not it exists (DamagedError: it is not a digest)."""
        return self.root / key_of(digest)

    def set_owner(self, owner: str) -> None:
        file, fresh = self.root / OWNER_FILE, self.root / f"{OWNER_FILE}.new"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(f"{owner}\n".encode())
            flush(fresh)
            fresh.replace(file)
            for path in (self.root, self.root.parent):
                flush(path)
        except OSError as error:
            raise StorageError(f"{file} cannot be written: {error.strerror}", SPACE) from error

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def delete(self, digest: str) -> int:
        freed, path = self.disk_bytes(digest), self.path(digest)
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
        return freed

    def disk_bytes(self, digest: str) -> int:
        return sum(file.stat().st_size for file in self.path(digest).rglob("*") if file.is_file())

    def digests(self) -> Iterator[str]:
        for path in sorted(self.root.glob("??/*")):
            if is_digest(path.name) and path.name.startswith(path.parent.name):
                yield path.name

    def _place(self) -> "LocalStore":
        from zarr.storage import LocalStore  # an object store's threads would not outlive a fork

        return LocalStore(self.root)

    def _read(self, key: str, most: int) -> bytes | None:
        file = self.root / key
        try:
            if (size := regular_size(file)) > most:
                raise ValueError(f"it has {size:,} bytes")
            return file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _put(self, key: str, data: bytes | memoryview, *, overwrite: bool) -> None:
        file = self.root / key
        file.write_bytes(data)
        flush(file)

    def _description(self, digest: str, *, cached: bool) -> bytes | None:
        if self.path(digest).is_symlink():
            raise ValueError("its folder is a symbolic link")
        return self._read(f"{key_of(digest)}/{DESCRIPTION}", DESCRIPTION_BYTES)

    def _files_of(self, digest: str, layout: Layout, *, cached: bool) -> ArrayFiles:
        path = self.path(digest)
        return ArrayFiles(
            digest, layout, lambda number: open_chunk(path / layout.chunk_name(number), layout, number), at_once=1
        )

    def _write(self, digest: str, layout: Layout, blocks: Iterator[Block], overwrite: bool) -> None:
        path = self.path(digest)
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(parents=True)
            super()._write(digest, layout, blocks, overwrite)
            for written in (path, path.parent, self.root):
                flush(written)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise


def flush(path: Path) -> None:
    """Flush one file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
