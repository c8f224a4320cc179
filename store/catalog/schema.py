"""The catalog's schema: which revision a database has, and bringing it to the one this program works with."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, inspect, text

from store.catalog.backup import backup
from store.catalog.engine import file_of, translated
from store.catalog.tables import VERSION_TABLE, Base
from store.errors import SchemaError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

HEAD = "37ba63a23494"
"""The revision this program works with; a test holds it against the newest file of `migrations/versions`."""


@dataclass(frozen=True)
class Upgrade:
    """What upgrading did.

    Attributes:
        before: the revision that the database had; None where it held no catalog.
        after: the one that it has.
        backup: the copy that was made of it before; None where nothing changed, or it is no SQLite file.
    """

    before: str | None
    after: str
    backup: Path | None


def current(engine: Engine) -> str | None:
    """Return the revision of the database, or None where it holds no catalog yet; an absent file is not created."""
    if _is_absent(engine):
        return None
    with translated(engine), engine.connect() as connection:  # one transaction: another process may be making it
        if not inspect(connection).has_table(VERSION_TABLE):
            return None
        return str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one())


def check(engine: Engine) -> bool:
    """Return True where the database is at `HEAD`, False where it holds no catalog yet.

    Raises:
        SchemaError: it is older (the message gives the command that upgrades it) or newer.
    """
    found = current(engine)
    if found is None and _has_experts(engine):
        found = current(engine)  # another process may have made them since
        if found is None:
            raise SchemaError(
                f"the database has tables of a catalog but no table {VERSION_TABLE}: another program made it",
                "name another one with --database, or another home with --home",
            )
    if found is None:
        return False
    if found == HEAD:
        return True
    if found in _known_revisions():
        raise SchemaError(f"the catalog has schema {found}, this program works with {HEAD}", "run: reg db upgrade")
    raise SchemaError(
        f"the catalog has schema {found}, which is newer than this program's {HEAD}",
        "upgrade the program: pip install --upgrade expert-registry",
    )


def upgrade(engine: Engine) -> Upgrade:
    """Bring the database to `HEAD` in one transaction; a copy of an older SQLite database is made first.

    Raises:
        SchemaError: it is newer than this program.
        StorageError: the copy cannot be made.
    """
    from alembic import command

    before = current(engine)
    if before is not None and before not in _known_revisions():
        check(engine)
    kept = None
    with translated(engine), engine.execution_options(writing=True).begin() as connection:
        if before not in (None, HEAD):
            kept = backup(engine, before)  # nobody can write until the upgrade is done
        command.upgrade(_config(connection), "head")
    return Upgrade(before, HEAD, kept)


def _has_experts(engine: Engine) -> bool:
    if _is_absent(engine):
        return False
    with translated(engine):
        return bool(inspect(engine).has_table(Base.metadata.tables["experts"].name))


def _is_absent(engine: Engine) -> bool:
    file = file_of(engine)
    return file is not None and not file.exists()


def _config(connection: "Connection | None" = None) -> "Config":
    from alembic.config import Config

    config = Config()
    folder: Any = importlib.import_module("store.migrations").__path__[0]
    config.set_main_option("script_location", str(Path(folder)).replace("%", "%%"))
    config.attributes.update(connection=connection, version_table=VERSION_TABLE, metadata=Base.metadata)
    return config


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
