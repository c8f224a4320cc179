"""The home of a registry: `--home` or REG_HOME, else the platform's folder for user data."""

import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from registry.errors import ConflictError, NotFoundError
from store.arrays import ArrayStore, open_arrays
from store.object_store import is_url

HOME_VARIABLE = "REG_HOME"
DATABASE_VARIABLE = "REG_DATABASE"
ARRAYS_VARIABLE = "REG_ARRAYS"
_CATALOG, _ARRAYS, _LOCK, _LOCKS = "catalog.sqlite", "arrays", "lock", "locks"
_PARTIAL, _MERGED, _WORK, _CACHE, _FOLDERS, _SUMMARIES = "partial", "merged", "work", "cache", "folders", "summaries"
_CHUNKS, _LOG_SEEN = "chunks", "log-seen"


@dataclass(frozen=True)
class Home:
    """The folder of one registry, its catalog's database, and where its arrays are.

    Attributes:
        path: the folder; created by the first write.
        database: a SQLAlchemy URL.
        is_default: the folder is the default, not a named one.
        arrays_elsewhere: the URL of a bucket, or an absolute path, that holds the arrays in place of the folder.
    """

    path: Path
    database: str
    is_default: bool = False
    arrays_elsewhere: str | None = None

    @classmethod
    def locate(
        cls,
        path: str | os.PathLike[str] | None = None,
        database: str | None = None,
        arrays: str | os.PathLike[str] | None = None,
    ) -> "Home":
        """Return the home from the arguments, else from the environment, else the default."""
        named = path or os.environ.get(HOME_VARIABLE)
        folder = Path(named or _default()).expanduser().absolute()
        url = database or os.environ.get(DATABASE_VARIABLE) or _embedded(folder)
        place = os.fspath(arrays or os.environ.get(ARRAYS_VARIABLE) or "")
        if place and not is_url(place):
            place = str(Path(place).expanduser().absolute())
        elsewhere = None if place in ("", str(folder / _ARRAYS)) else place
        return cls(folder, url, is_default=not named, arrays_elsewhere=elsewhere)

    def check(self, *, create: bool) -> None:
        """Check that the folder holds a registry, or with `create` that one may be created there.

        The default folder need not exist. If the catalog is in a database elsewhere, a folder without arrays may be a
        registry's too; if the arrays are elsewhere as well, it need not exist.

        Raises:
            NotFoundError: the folder does not exist, or holds no registry.
            ConflictError: the folder holds something else, or is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConflictError(
                f"{self.path} is a file, and a registry's home is a folder", "name a folder with --home or REG_HOME"
            )
        names = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        if names & {_CATALOG, _ARRAYS}:
            return
        known = {_PARTIAL, _MERGED, _WORK, _CACHE, _FOLDERS, _SUMMARIES, _CHUNKS, _LOG_SEEN, _LOCK, _LOCKS}
        if names - known - {f".{name}.gone" for name in known}:  # that is being deleted by another process
            raise ConflictError(
                f"the folder {self.path} is not empty and holds no registry",
                "name a registry's folder with --home or REG_HOME, or for a new registry one that is absent or empty",
            )
        absent = not self.path.exists() and self.arrays_elsewhere is None
        if not create and not self.is_default and (self.has_own_catalog or absent):
            raise NotFoundError(
                f"there is no registry at {self.path}",
                "name another folder with --home or REG_HOME; "
                f"to make one here, register a model: reg --home {shlex.quote(str(self.path))} add-base NAME CKPT",
            )

    @property
    def has_own_catalog(self) -> bool:
        """The catalog is in the folder, so that no other home has the same one."""
        return self.database == _embedded(self.path)

    @property
    def arrays(self) -> Path:
        """The folder of the arrays, unless they are elsewhere."""
        return self.path / _ARRAYS

    @property
    def arrays_place(self) -> str:
        """The path or URL of the arrays."""
        return self.arrays_elsewhere or str(self.arrays)

    @property
    def chunks(self) -> Path:
        """Copies of chunks of arrays that are in a bucket."""
        return self.path / _CHUNKS

    def open_arrays(self) -> ArrayStore:
        """Return the array store.

        Raises:
            InvalidInputError: the place is no path and no URL of a bucket.
            StorageError: the library for object stores is not installed, or its settings are wrong.
        """
        return open_arrays(self.arrays_place, self.chunks)

    @property
    def former_catalogs(self) -> list[Path]:
        """The files of a SQLite catalog in the folder, and of its copies, where another database is the catalog."""
        return [] if self.has_own_catalog else sorted(self.path.glob(f"{_CATALOG}*"))

    @property
    def partial(self) -> Path:
        """States of interrupted passes, from which they resume."""
        return self.path / _PARTIAL

    @property
    def merged(self) -> Path:
        """Adapters merged into their base models, during registration."""
        return self.path / _MERGED

    @property
    def work(self) -> Path:
        """Models that compositions load for their passes, deleted afterwards."""
        return self.path / _WORK

    @property
    def cache(self) -> Path:
        """The cache of statistics that compositions collected."""
        return self.path / _CACHE

    @property
    def folders(self) -> Path:
        """Records of composed folders, which make composing to the same path faster."""
        return self.path / _FOLDERS

    @property
    def summaries(self) -> Path:
        """Summaries that versions are compared by."""
        return self.path / _SUMMARIES

    @property
    def log_seen(self) -> Path:
        """The event of a catalog elsewhere up to which opt-outs from other homes were followed here."""
        return self.path / _LOG_SEEN

    @property
    def lock(self) -> Path:
        """The lock of writers."""
        return self.path / _LOCK

    @property
    def cache_lock(self) -> Path:
        """The lock for storing and deleting cached statistics and summaries."""
        return self.path / _LOCKS / _CACHE

    def output_lock(self, out: Path | str) -> Path:
        """Return the lock of compositions to `out`, an absolute path or a URL."""
        return self.path / _LOCKS / hashlib.sha256(str(out).encode()).hexdigest()[:16]


def _embedded(folder: Path) -> str:
    return f"sqlite:///{folder / _CATALOG}"


def _default() -> Path:
    from platformdirs import user_data_path

    return user_data_path("reg", appauthor=False)
