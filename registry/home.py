"""Where a registry lives: `--home` or REG_HOME, else the platform's folder for user data."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "REG_HOME"
DATABASE_VARIABLE = "REG_DATABASE"


@dataclass(frozen=True)
class Home:
    """The folder of one registry, and its catalog's database.

    Attributes:
        path: the folder; created when something is first written.
        database: a SQLAlchemy URL.
    """

    path: Path
    database: str

    @classmethod
    def locate(cls, path: str | os.PathLike[str] | None = None, database: str | None = None) -> "Home":
        """Return the home: what is given, else what the environment says, else the default."""
        folder = Path(path or os.environ.get(HOME_VARIABLE) or _default()).expanduser().absolute()
        url = database or os.environ.get(DATABASE_VARIABLE) or _embedded(folder)
        return cls(folder, url)

    @property
    def is_absent(self) -> bool:
        """True where nothing was ever written here: neither the folder nor a catalog elsewhere."""
        return self.database == _embedded(self.path) and not self.path.exists()

    @property
    def arrays(self) -> Path:
        """The array store."""
        return self.path / "arrays"

    @property
    def partial(self) -> Path:
        """Passes under way, so that they can go on."""
        return self.path / "partial"

    @property
    def merged(self) -> Path:
        """Adapters that are being registered, merged into their base models."""
        return self.path / "merged"

    @property
    def lock(self) -> Path:
        """The lock that writers hold."""
        return self.path / "lock"

    def output_lock(self, out: Path) -> Path:
        """Return the lock that composing into the folder `out` holds."""
        return self.path / "locks" / hashlib.sha256(str(out).encode()).hexdigest()[:16]


def _embedded(folder: Path) -> str:
    return f"sqlite:///{folder / 'catalog.sqlite'}"


def _default() -> Path:
    from platformdirs import user_data_path

    return user_data_path("reg", appauthor=False)
