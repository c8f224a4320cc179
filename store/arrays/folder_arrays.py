"""Arrays in a folder: chunks are written in place, flushed to disk, read back and compared with the digest.

Writing does not rely on renames. A crash leaves an incomplete folder; the next `put` of the same content writes it
again.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from store.arrays.array_store import OWNER_BYTES, OWNER_FILE, ArrayStore, check_is_digest, is_digest, parse_owner
from store.arrays.chunk_files import ArrayFiles, FolderFiles, flush, write_array
from store.arrays.content_digest import damaged, little_endian
from store.arrays.source import ArraySource, rows_per_block
from store.arrays.zarr_layout import Layout, read_layout, regular_size
from store.errors import NotFoundError, StorageError
from store.permissions import SPACE


class FolderArrays(ArrayStore):
    """The arrays below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def place(self) -> str:
        """The path of the folder."""
        return str(self.root)

    def path(self, digest: str) -> Path:
        """Return the folder of the array `digest`, whether or not it exists.

        Raises:
            DamagedError: `digest` is not a digest, so no path may be built from it.
        """
        check_is_digest(digest)
        return self.root / digest[:2] / digest

    @property
    def owner_file(self) -> Path:
        """The file that holds the id of the catalog."""
        return self.root / OWNER_FILE

    def owner(self) -> str | None:
        """Return the id of the catalog that these arrays belong to; None if the file is absent or incomplete."""
        try:
            data = self.owner_file.read_bytes() if regular_size(self.owner_file) <= OWNER_BYTES else b""
        except (FileNotFoundError, ValueError):
            return None
        return parse_owner(data)

    def owner_problem(self) -> str | None:
        """Return one line if the file of the owner is there and unreadable; None otherwise."""
        if self.owner_file.exists() and self.owner() is None:
            return f"{self.owner_file} is damaged; the next registration writes it again"
        return None

    def set_owner(self, owner: str) -> None:
        """Write the id of the catalog that these arrays belong to, atomically."""
        file = self.owner_file
        fresh = file.with_name(f"{file.name}.new")
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
        """Return True if the folder of `digest` exists, intact or not."""
        return self.path(digest).exists()

    def delete(self, digest: str) -> int:
        """Delete `digest` and return the bytes freed on disk; 0 if it was absent."""
        freed, path = self.disk_bytes(digest), self.path(digest)
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
        return freed

    def disk_bytes(self, digest: str) -> int:
        """Return the size of `digest` on disk in bytes; 0 if it is absent."""
        return sum(file.stat().st_size for file in self.path(digest).rglob("*") if file.is_file())

    def digests(self) -> Iterator[str]:
        """Yield the digest of every array on disk, complete or not, in order; other files are ignored."""
        for path in sorted(self.root.glob("??/*")):
            if is_digest(path.name) and path.name.startswith(path.parent.name):
                yield path.name

    def _files(self, digest: str, *, cached: bool) -> ArrayFiles:
        path = self.path(digest)
        if not path.is_dir():
            raise NotFoundError(f"array {digest[:12]} is not below {self.root}", "reg verify")
        try:
            return FolderFiles(path, read_layout(path))
        except (OSError, ValueError) as error:
            raise damaged(digest, f"zarr.json is unreadable ({error})") from error

    def _write(self, source: ArraySource, digest: str, compress: bool) -> None:
        path = self.path(digest)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        layout = Layout(source.dtype, source.shape, rows_per_block(source.shape), compress)
        write_array(path, layout, map(little_endian, source.blocks()))
        flush(path.parent)
        flush(path.parent.parent)

    def _abandon(self, digest: str) -> None:
        shutil.rmtree(self.path(digest), ignore_errors=True)
