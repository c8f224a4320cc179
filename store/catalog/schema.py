"""The catalog's schema: the revision of a database, and its upgrade to the revision of this program."""

import importlib
import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from store.catalog.engine import file_of, translated
from store.catalog.files import backup
from store.catalog.tables import VERSION_TABLE, Base, Expert, Identity
from store.errors import SchemaError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

HEAD = "c4d1f0a97b35"
"""The revision this program works with; a test compares it with the newest file of `migrations/versions`."""


@dataclass(frozen=True)
class Upgrade:
    """The result of an upgrade: `before` is None without a catalog, `backup` where nothing was copied."""

    before: str | None  # the catalog's revision before
    after: str  # the catalog's revision now
    backup: Path | None  # the copy made before the upgrade


def current(engine: Engine) -> str | None:
    """Return the revision of the database, or None if it holds no catalog yet; an absent file is not created."""
    if _is_absent(engine):
        return None
    with translated(engine), engine.connect() as connection:  # one transaction: another process may be creating it
        if not inspect(connection).has_table(VERSION_TABLE):
            return None
        return str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one())


def check(engine: Engine) -> bool:
    """Tell whether the database is at `HEAD`; False if it holds no catalog (SchemaError: it is older or newer)."""
    revision = current(engine)
    if revision is None:
        if _is_absent(engine):
            return False
        with translated(engine):
            has_experts = inspect(engine).has_table(Expert.__tablename__)
        revision = current(engine) if has_experts else None  # another process may have created it since
        if has_experts and revision is None:
            raise SchemaError(
                f"the database has tables of a catalog but no table {VERSION_TABLE}: another program created it",
                "choose another database with --database, or another home with --home",
            )
    if revision in (None, HEAD):
        return revision == HEAD
    if revision in _known_revisions():
        raise SchemaError(f"the catalog has schema {revision}, this program works with {HEAD}", _upgrade_line(engine))
    raise SchemaError(
        f"the catalog has schema {revision}, which is newer than this program's {HEAD}",
        "upgrade the program: pip install --upgrade expert-registry",
    )


def _upgrade_line(engine: Engine) -> str:
    """Return what to type to upgrade a database: where the upgrade copies none, the command that does comes before."""
    if engine.dialect.name != "postgresql":
        return "reg db upgrade"
    place = engine.url.set(drivername="postgresql", password=None).render_as_string(hide_password=True)
    return f"pg_dump --format=custom --file=catalog.dump {shlex.quote(place)}; reg db upgrade"


def upgrade(engine: Engine) -> Upgrade:
    """Upgrade to `HEAD` in one transaction, after a copy of SQLite (SchemaError: newer; StorageError: no copy)."""
    before = current(engine)
    if before is not None and before not in _known_revisions():
        check(engine)
    copy = None
    with translated(engine), engine.execution_options(writing=True).begin() as connection:
        if before not in (None, HEAD):
            copy = backup(engine, before)  # no other process can write until the upgrade ends
        migrate(connection)
    return Upgrade(before, HEAD, copy)


def migrate(connection: "Connection") -> None:
    """Bring the database to `HEAD` within the transaction of `connection`."""
    from alembic import command

    command.upgrade(_config(connection), "head")


def empty_catalog() -> Engine:
    """Return an engine whose one database, in memory, has the tables of a catalog, and no rows but an id."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Identity(id=uuid.uuid4().hex))
    return engine


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
