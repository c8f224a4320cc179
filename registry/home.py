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
_CATALOG = "catalog.sqlite"


@dataclass(frozen=True)
class _Below:
    """An attribute of a home: the path of a file or folder below it."""

    name: str

    def __get__(self, home: "Home", _: type) -> Path:
        return home.path / self.name


@dataclass(frozen=True)
class Home:
    """The folder of one registry, its catalog's database, and where its arrays are.

    Attributes:
        arrays_elsewhere: the URL of a bucket, or an absolute path, that holds the arrays in place of the folder.
    """

    path: Path  # the folder; created by the first write
    database: str  # a SQLAlchemy URL
    is_default: bool = False  # the folder is the default, not a named one
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
        elsewhere = None if place in ("", str(cls(folder, url).arrays)) else place
        return cls(folder, url, is_default=not named, arrays_elsewhere=elsewhere)

    def check(self, *, create: bool) -> None:
        """Check that the folder holds a registry, or with `create` that one may be created there.

        The default folder need not exist. If the catalog is in a database elsewhere, a folder without arrays may be a
        registry's too; if the arrays are elsewhere as well, it need not exist (NotFoundError: the folder is absent, or
        holds no registry; ConflictError: it holds something else, or is a file).
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConflictError(
                f"{self.path} is a file, and a registry's home is a folder", "name a folder with --home or REG_HOME"
            )
        names = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        if names & {_CATALOG, self.arrays.name}:
            return
        known = {below.name for below in vars(Home).values() if isinstance(below, _Below)}
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

    arrays = _Below("arrays")  # the folder of the arrays, unless they are elsewhere
    chunks = _Below("chunks")  # copies of chunks of arrays that are in a bucket
    partial = _Below("partial")  # states of interrupted passes, from which they resume
    merged = _Below("merged")  # adapters merged into their base models, during registration
    work = _Below("work")  # models that compositions load for their passes, deleted afterwards
    cache = _Below("cache")  # statistics that compositions collected
    folders = _Below("folders")  # records of composed folders, which make composing to the same path faster
    summaries = _Below("summaries")  # what versions are compared by
    log_seen = _Below("log-seen")  # the event of a catalog elsewhere up to which opt-outs were followed here
    lock = _Below("lock")  # the lock of writers
    locks = _Below("locks")  # those of the cache, and of outputs
    cache_lock = _Below("locks/cache")  # for storing and deleting cached statistics and summaries

    @property
    def has_own_catalog(self) -> bool:
        """The catalog is in the folder, so that no other home has the same one."""
        return self.database == _embedded(self.path)

    @property
    def arrays_place(self) -> str:
        """The path or URL of the arrays."""
        return self.arrays_elsewhere or str(self.arrays)

    def open_arrays(self) -> ArrayStore:
        """Return the array store (errors as `store.arrays.open_arrays`)."""
        return open_arrays(self.arrays_place, self.chunks)

    @property
    def former_catalogs(self) -> list[Path]:
        """The files of a SQLite catalog in the folder, and of its copies, where another database is the catalog."""
        return [] if self.has_own_catalog else sorted(self.path.glob(f"{_CATALOG}*"))

    def output_lock(self, out: Path | str) -> Path:
        """Return the lock of compositions to `out`, an absolute path or a URL."""
        return self.locks / hashlib.sha256(str(out).encode()).hexdigest()[:16]


def _embedded(folder: Path) -> str:
    return f"sqlite:///{folder / _CATALOG}"


def _default() -> Path:
    from platformdirs import user_data_path

    return user_data_path("reg", appauthor=False)
