"""The home of a registry: `--home` or REG_HOME, else the platform's folder for user data."""

import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from registry.errors import ConflictError, NotFoundError

HOME_VARIABLE = "REG_HOME"
DATABASE_VARIABLE = "REG_DATABASE"
_CATALOG, _ARRAYS, _LOCK, _LOCKS = "catalog.sqlite", "arrays", "lock", "locks"
_PARTIAL, _MERGED, _WORK, _CACHE, _FOLDERS, _SUMMARIES = "partial", "merged", "work", "cache", "folders", "summaries"


@dataclass(frozen=True)
class Home:
    """The folder of one registry, and its catalog's database.

    Attributes:
        path: the folder; created by the first write.
        database: a SQLAlchemy URL.
        is_default: the folder is the default, not a named one.
    """

    path: Path
    database: str
    is_default: bool = False

    @classmethod
    def locate(cls, path: str | os.PathLike[str] | None = None, database: str | None = None) -> "Home":
        """Return the home from the arguments, else from the environment, else the default."""
        named = path or os.environ.get(HOME_VARIABLE)
        folder = Path(named or _default()).expanduser().absolute()
        url = database or os.environ.get(DATABASE_VARIABLE) or _embedded(folder)
        return cls(folder, url, is_default=not named)

    def check(self, *, create: bool) -> None:
        """Check that the folder holds a registry, or with `create` that one may be created there.

        The default folder need not exist. If the catalog is in a database elsewhere, a folder without arrays may be a
        registry's too.

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
        if names - {_PARTIAL, _MERGED, _WORK, _CACHE, _FOLDERS, _SUMMARIES, _LOCK, _LOCKS}:
            raise ConflictError(
                f"the folder {self.path} is not empty and holds no registry",
                "name a registry's folder with --home or REG_HOME, or for a new registry one that is absent or empty",
            )
        embedded = self.database == _embedded(self.path)
        if not create and not self.is_default and (embedded or not self.path.exists()):
            raise NotFoundError(
                f"there is no registry at {self.path}",
                "name another folder with --home or REG_HOME; "
                f"the first registration makes one: reg --home {shlex.quote(str(self.path))} add-base NAME CKPT",
            )

    @property
    def arrays(self) -> Path:
        """The array store."""
        return self.path / _ARRAYS

    @property
    def former_catalogs(self) -> list[Path]:
        """The files of a SQLite catalog in the folder, and of its copies, where another database is the catalog."""
        return [] if self.database == _embedded(self.path) else sorted(self.path.glob(f"{_CATALOG}*"))

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
    def lock(self) -> Path:
        """The lock of writers."""
        return self.path / _LOCK

    @property
    def cache_lock(self) -> Path:
        """The lock for storing and deleting cached statistics and summaries."""
        return self.path / _LOCKS / _CACHE

    def output_lock(self, out: Path) -> Path:
        """Return the lock of compositions to the folder `out`."""
        return self.path / _LOCKS / hashlib.sha256(str(out).encode()).hexdigest()[:16]


def _embedded(folder: Path) -> str:
    return f"sqlite:///{folder / _CATALOG}"


def _default() -> Path:
    from platformdirs import user_data_path

    return user_data_path("reg", appauthor=False)
