"""Arrays in a folder: chunks are written in place, flushed to disk, read back and compared with the digest.

Writing does not rely on renames. A crash leaves an incomplete folder; the next `put` of the same content writes it
again.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from store.arrays.array_store import OWNER_BYTES, OWNER_FILE, ArrayStore, key_of
from store.arrays.chunk_files import ArrayFiles, encoded_files, encoded_layout, flush, open_chunk
from store.arrays.content_digest import Block, damaged
from store.arrays.zarr_layout import DESCRIPTION, ChunkFile, Layout, read_layout, regular_size
from store.digest import is_digest
from store.errors import NotFoundError, StorageError
from store.permissions import SPACE


class FolderArrays(ArrayStore):
    """The arrays below one folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.place = root, str(root)
        self.owner_file = root / OWNER_FILE

    def path(self, digest: str) -> Path:
        """Return the folder of an array, whether or not it exists (DamagedError: it is not a digest)."""
        return self.root / key_of(digest)

    def set_owner(self, owner: str) -> None:
        fresh = self.root / f"{OWNER_FILE}.new"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(f"{owner}\n".encode())
            flush(fresh)
            fresh.replace(self.owner_file)
            for path in (self.root, self.root.parent):
                flush(path)
        except OSError as error:
            raise StorageError(f"{self.owner_file} cannot be written: {error.strerror}", SPACE) from error

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

    def _owner_data(self) -> bytes | None:
        try:
            return self.owner_file.read_bytes() if regular_size(self.owner_file) <= OWNER_BYTES else b""
        except ValueError:
            return b""
        except FileNotFoundError:
            return None

    def _files(self, digest: str, *, cached: bool) -> ArrayFiles:
        path = self.path(digest)
        if not path.is_dir():
            raise NotFoundError(f"array {digest[:12]} is not below {self.root}", "reg verify")
        try:
            return _FolderFiles(digest, read_layout(path), path)
        except (OSError, ValueError) as error:
            raise damaged(digest, f"zarr.json is unreadable ({error})") from error

    def _write(self, digest: str, layout: Layout, blocks: Iterator[Block]) -> None:
        path = self.path(digest)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        (path / DESCRIPTION).write_bytes(encoded_layout(layout))
        for name, parts in encoded_files(layout, blocks):
            with (path / name).open("xb") as file:
                file.writelines(parts)
            flush(path / name)
        for written in (path / DESCRIPTION, path, path.parent, path.parent.parent):
            flush(written)

    def _abandon(self, digest: str) -> None:
        shutil.rmtree(self.path(digest), ignore_errors=True)


class _FolderFiles(ArrayFiles):
    """The files of an array in its folder."""

    def __init__(self, digest: str, layout: Layout, folder: Path) -> None:
        super().__init__(digest, layout)
        self._folder = folder

    def open(self, number: int) -> ChunkFile:
        return open_chunk(self._folder / self.layout.chunk_name(number), self.layout, number)
