"""One SQLAlchemy engine per catalog, and the translation of whatever a database raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from store.access import not_writable, why_not_writable
from store.errors import DamagedError, InvalidInputError, StorageError

BUSY_SECONDS = 60

_DAMAGE = ("malformed", "not a database", "no such column", "no such table", "Could not decode")
"""Of what SQLite says where its file is not what it wrote; the schema's revision has been checked by then."""


def make_engine(url: str) -> Engine:
    """Return an engine for `url` (any SQLAlchemy URL). On SQLite a writing transaction takes its lock at its start.

    An SQLite database that cannot be written, file or folder, is opened for reading alone.

    Raises:
        InvalidInputError: `url` is no database URL, or its driver is not installed.
    """
    try:
        engine = create_engine(make_url(url))
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise InvalidInputError(
            f"cannot use the database URL: {error}",
            "give a SQLAlchemy URL, such as sqlite:////path/catalog.sqlite or postgresql+psycopg://user@host/name, "
            "and install its driver (pip install 'psycopg[binary]')",
        ) from error
    if engine.dialect.name == "sqlite":
        file = file_of(engine)
        if read_only := file is not None and file.exists() and _why_read_only(file) is not None:
            # No pool: each transaction decides anew whether there is a writer, and sees what that has written.
            engine = create_engine(url, poolclass=NullPool)
            event.listen(engine, "do_connect", partial(_connect_read_only, file))
        event.listen(engine, "connect", partial(_configure_sqlite, write_ahead=not read_only))
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def place_of(engine: Engine) -> str:
    """Return the database's URL, any password hidden."""
    return engine.url.render_as_string(hide_password=True)


def file_of(engine: Engine) -> Path | None:
    """Return the file of an SQLite database, or None for any other and for one in memory."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name.startswith((":memory:", "file:")):
        return None
    return Path(name).absolute()


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn every error of the database below into one a user can act on, with any password hidden."""
    where = place_of(engine)
    try:
        yield
    except DBAPIError as error:
        cause = str(error.orig).strip()
        file = file_of(engine)
        if file is not None and ("readonly" in cause or "unable to open" in cause) and (why := _why_read_only(file)):
            raise not_writable(file.parent, why) from error
        if any(words in cause for words in _DAMAGE):
            raise DamagedError(f"the catalog {where} is damaged: {cause}", "restore it from a backup") from error
        raise StorageError(f"the catalog {where} refused: {cause}", "mend that, then repeat the command") from error
    except SQLAlchemyError as error:
        raise StorageError(f"the catalog {where} cannot be used: {error}") from error


def _why_read_only(file: Path) -> str | None:
    for path in (file.parent, file):
        if path.exists() and (why := why_not_writable(path)):
            return why if path == file.parent else f"{file.name}: {why}"
    return None


def _connect_read_only(file: Path, _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Open `file` without creating anything beside it.

    Readers of a write-ahead log share an index file with the writer. Where there is no log there is no writer, and
    SQLite is told that nothing changes, so that it needs none.
    """
    log = file.with_name(f"{file.name}-wal")
    quiet = not log.exists() or log.stat().st_size == 0
    arguments[0] = f"{file.as_uri()}?mode=ro" + ("&immutable=1" if quiet else "")
    options["uri"] = True


def _configure_sqlite(connection: Any, _record: Any, *, write_ahead: bool) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    if write_ahead:
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A reader that turns writer can lose to another ("database is locked"); a writer that locks at once waits its turn.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writing") else "BEGIN")
