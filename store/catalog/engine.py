"""One SQLAlchemy engine per catalog, and the translation of database errors."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from store.catalog import postgresql
from store.errors import DamagedError, InvalidInputError, StorageError
from store.permissions import SPACE, not_writable, why_not_writable

BUSY_SECONDS = 60  # seconds that a transaction waits for another process before it gives up
_BUSY, _LOCKED, _PROTOCOL = 5, 6, 15  # SQLite's error codes for a database that another process has locked
_DAMAGE = ("malformed", "not a database", "no such column", "no such table", "Could not decode")
"""Parts of SQLite's messages for a damaged file; the schema's revision has been checked before."""


def make_engine(url: str) -> Engine:
    """Return an engine for `url` (any SQLAlchemy URL). On SQLite a writing transaction takes its lock at its start.

    A SQLite database whose file or folder cannot be written is opened read-only (InvalidInputError: `url` is not a
    database URL, or its driver is not installed).
    """
    try:
        place = postgresql.named(make_url(url))
        engine = create_engine(place, pool_pre_ping=True, connect_args=postgresql.arguments(place))
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise InvalidInputError(
            f"cannot use the database URL: {error}",
            "give a SQLAlchemy URL, such as sqlite:////path/catalog.sqlite or postgresql+psycopg://user@host/name, "
            "and install its driver (pip install 'expert-registry[postgres]')",
        ) from error
    if engine.dialect.name == "sqlite":
        file = file_of(engine)
        if read_only := file is not None and file.exists() and _why_read_only(file) is not None:
            # No pool: each transaction checks again for a writer, and sees what it has written.
            engine = create_engine(url, poolclass=NullPool)
            event.listen(engine, "do_connect", partial(_connect_read_only, file))
        event.listen(engine, "connect", partial(_configure_sqlite, write_ahead=not read_only))
        event.listen(engine, "begin", _begin_sqlite)
    elif engine.dialect.name == "postgresql":
        event.listen(engine, "connect", postgresql.configure)
    return engine


def place_of(engine: Engine) -> str:
    """Return the database's URL, with any password hidden and the path of a SQLite file absolute."""
    file = file_of(engine)
    url = engine.url if file is None else engine.url.set(database=str(file))
    return url.render_as_string(hide_password=True)


def file_of(engine: Engine) -> Path | None:
    """Return the file of a SQLite database, or None for other databases and for one in memory."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name.startswith((":memory:", "file:")):
        return None
    return Path(name).absolute()


def snapshot(engine: Engine) -> Engine:
    """Return an engine in whose transactions all statements see the same rows; in SQLite they always do."""
    is_postgresql = engine.dialect.name == "postgresql"
    return engine.execution_options(isolation_level="REPEATABLE READ") if is_postgresql else engine


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn database errors into errors that a user can act on, with any password hidden."""
    url = place_of(engine)
    try:
        yield
    except DBAPIError as error:
        if engine.dialect.name == "postgresql":
            raise postgresql.explained(error, url, engine.url.password) from error
        cause = str(error.orig).strip()
        if _is_busy(error.orig):
            raise StorageError(
                f"other processes have locked the catalog {url} for {BUSY_SECONDS} s", "repeat when they have ended"
            ) from error
        file = file_of(engine)
        if file is not None and ("readonly" in cause or "unable to open" in cause) and (why := _why_read_only(file)):
            raise not_writable(file.parent, why) from error
        if any(words in cause for words in _DAMAGE):
            raise DamagedError(f"the catalog {url} is damaged: {cause}", "restore it from a backup") from error
        full = "is full" in cause or "disk I/O" in cause
        if "unable to open" in cause and file is not None and file.is_file():
            full = True  # SQLite cannot create its log beside the file: the disk is full
        hint = SPACE if full else "correct the cause, then repeat the command"
        raise StorageError(f"the catalog {url} cannot be used: {cause}", hint) from error
    except UnicodeDecodeError as error:  # of a message of SQLite that quotes a damaged schema
        raise DamagedError(f"the catalog {url} is damaged: {error}", "restore it from a backup") from error
    except SQLAlchemyError as error:
        raise StorageError(
            f"the catalog {url} cannot be used: {error}", "check that the database answers; reg config shows its URL"
        ) from error


def _why_read_only(file: Path) -> str | None:
    for path in (file.parent, file):
        if path.exists() and (why := why_not_writable(path)):
            return why if path == file.parent else f"{file.name}: {why}"
    return None


def _connect_read_only(file: Path, _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Open `file` without creating files beside it.

    Readers of a write-ahead log share an index file with the writer. Without a log there is no writer, so the database
    is opened as immutable and needs no index file.
    """
    log = file.with_name(f"{file.name}-wal")
    quiet = not log.exists() or log.stat().st_size == 0
    arguments[0] = f"{file.as_uri()}?mode=ro" + ("&immutable=1" if quiet else "")
    options["uri"] = True


def _configure_sqlite(connection: Any, _record: Any, *, write_ahead: bool) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    if write_ahead and _patiently(lambda: cursor.execute("PRAGMA journal_mode").fetchone())[0] != "wal":
        _patiently(lambda: cursor.execute("PRAGMA journal_mode = WAL"))
    # Deleted rows are overwritten, see `files`.
    for setting in ("synchronous = FULL", "secure_delete = ON", "temp_store = MEMORY", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A reader that becomes a writer can lose to another ("database is locked"); a writer that locks at once waits.
    if connection.get_execution_options().get("writing"):
        _patiently(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    else:
        connection.exec_driver_sql("BEGIN")
        _patiently(lambda: connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").close())


def _patiently(attempt: Callable[[], Any]) -> Any:
    """Return the result of `attempt`, retried for `BUSY_SECONDS` while another process has locked the database.

    SQLite itself does not wait while another process creates, recovers or closes the database's log.
    """
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return attempt()
        except Exception as error:
            if not _is_busy(getattr(error, "orig", error)) or time.monotonic() > end:
                raise
        time.sleep(random.uniform(0.005, 0.05))


def _is_busy(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (_BUSY, _LOCKED, _PROTOCOL)
