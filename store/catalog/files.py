"""The files of a database: copies beside it, made before its schema changes, and removal of deleted rows.

SQLite overwrites deleted rows (`secure_delete`), but early versions of this program did not ask it to, and the
write-ahead log still holds the old pages. So the file is rewritten, and the log is copied into it and truncated, which
waits for readers. PostgreSQL rewrites its tables, their indexes and the server's samples of their values, once no
transaction sees the old rows any more. What is out of reach there is `BEYOND`.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, String, text
from sqlalchemy.exc import DBAPIError

from store.arrays import flush
from store.catalog.engine import file_of, place_of
from store.catalog.postgresql import WAIT_SECONDS as STATEMENT_SECONDS
from store.catalog.tables import Base
from store.catalog.transactions import Transactions
from store.errors import StorageError
from store.permissions import SPACE

_SUFFIX = ".backup"
WAIT_SECONDS = 30.0  # seconds to wait for other processes that read

BEYOND = (
    "the write-ahead log of PostgreSQL until it is recycled, its archives, standbys, base backups and dumps: "
    "ask the database's administrator"
)
"""What `erase` cannot reach in PostgreSQL."""

_NOW = "SELECT pg_snapshot_xmax(pg_current_snapshot())::xid::text"
"""The first transaction that is not yet over."""

_OLDER = """SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()
    AND greatest(age(backend_xmin), age(backend_xid)) > age(CAST(CAST(:now AS text) AS xid))"""
"""The number of sessions that may still see what was deleted before a transaction."""

_KEPT = """SELECT age(relfrozenxid) > age(CAST(CAST(:now AS text) AS xid))
    FROM pg_class WHERE oid = CAST(CAST(:table AS text) AS regclass)"""
"""Whether rewriting a table kept what was deleted before a transaction: it freezes all older rows, or keeps them."""


def backup(engine: Engine, revision: str) -> Path | None:
    """Copy a SQLite database at `revision` beside itself and return the copy; None if the database is not a file.

    The name has the revision and the time, so no file is ever replaced (StorageError: the copy cannot be written).
    """
    file = file_of(engine)
    if file is None:
        return None
    name = f"{file.name}.{revision}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    partial = file.with_name(f"{name}.partial{_SUFFIX}")
    path = file.with_name(f"{name}{_SUFFIX}")
    try:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, without a log of its own
        flush(partial)
        partial.rename(path)  # the time is in its name, and upgrades exclude one another: it replaces nothing
        flush(path.parent)
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        raise StorageError(
            f"the catalog {file} cannot be copied to {path} before it is upgraded: {error}", SPACE
        ) from error
    return path


class Files(Transactions):
    """The part of the catalog that knows the files of its database."""

    def backups(self) -> list[Path]:
        """Return the copies that upgrades made, unfinished ones and auxiliary files too; none if it is no file."""
        file = file_of(self.engine)
        if file is None or not file.parent.is_dir():
            return []
        siblings = file.parent.iterdir()
        return sorted(path for path in siblings if path.name.startswith(f"{file.name}.") and _SUFFIX in path.suffix)

    @property
    def beyond(self) -> str | None:
        """The places of deleted rows that `erase` cannot reach, in words; None if there are none."""
        return BEYOND if self.engine.dialect.name == "postgresql" else None

    def erase(self) -> str | None:
        """Remove deleted rows from the database's files too; return the obstacle if that is impossible, else None."""
        file = file_of(self.engine)
        if file is not None:
            return _erase_sqlite(file)
        if self.engine.dialect.name == "postgresql":
            return _erase_postgresql(self.engine)
        if self.engine.url.database in (None, "", ":memory:"):
            return None
        return f"the database {place_of(self.engine)} cannot rewrite its files"


def _erase_sqlite(file: Path) -> str | None:
    try:
        with closing(sqlite3.connect(file, timeout=WAIT_SECONDS, isolation_level=None)) as connection:
            for pragma in ("secure_delete = ON", "temp_store = MEMORY", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        if "locked" not in str(error) and "busy" not in str(error):
            return f"{file} cannot be rewritten: {error}"
        busy = 1
    if not busy:
        return None
    return f"another process has used {file.name} for more than {WAIT_SECONDS:.0f} s: old pages stay in its log"


def _erase_postgresql(engine: Engine) -> str | None:
    try:
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql(f"SET lock_timeout = {int(WAIT_SECONDS * 1000)}")
            try:
                return _rewrite(connection)
            finally:
                connection.exec_driver_sql(f"SET lock_timeout = '{STATEMENT_SECONDS}s'")
    except DBAPIError as error:
        return f"the database cannot rewrite its tables: {str(error.orig).strip()}"


def _rewrite(connection: Connection) -> str | None:
    """Rewrite the tables, and the samples of their values that the server keeps; return the obstacle, if any."""
    tables = Base.metadata.sorted_tables
    if obstacle := _vacuum(connection, [table.name for table in tables]):
        return obstacle
    digests = {key.column for table in tables for key in table.foreign_keys}  # the log keeps them
    for table in tables:
        for column in table.columns:
            if isinstance(column.type, String) and not column.foreign_keys and column not in digests:
                kind = column.type.compile(connection.dialect)  # the same type: that alone deletes the samples
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ALTER COLUMN {column.name} TYPE {kind}")
    return _vacuum(connection, ["pg_catalog.pg_statistic"])


@contextmanager
def _notices(connection: Connection) -> Iterator[list[str]]:
    """Collect what the server says of the statements within; not every driver tells."""
    driver: Any = connection.connection.driver_connection
    said: list[str] = []

    def hear(told: Any) -> None:
        said.append(str(told.message_primary))

    tells = hasattr(driver, "add_notice_handler")
    if tells:
        driver.add_notice_handler(hear)
    try:
        yield said
    finally:
        if tells:
            driver.remove_notice_handler(hear)


def _vacuum(connection: Connection, tables: list[str]) -> str | None:
    """Rewrite tables without what was deleted before this moment; return the obstacle, if any.

    A row stays as long as anything may see it: a session, but also what no list of sessions shows (a prepared
    transaction, a replication slot, any session of the server while it starts). So each result is looked at.
    """
    now = connection.execute(text(_NOW)).scalar()
    end = time.monotonic() + WAIT_SECONDS
    while True:
        if not connection.execute(text(_OLDER), {"now": now}).scalar():
            with _notices(connection) as said:  # without permission the server warns, and does nothing
                for table in tables:
                    connection.exec_driver_sql(f"VACUUM (FULL) {table}")
            if refused := [line for line in said if "skipping" in line or "permission denied" in line]:
                return f"the database's owner must rewrite what its user may not: {'; '.join(refused)}"
            kept = text(_KEPT)
            tables = [table for table in tables if connection.execute(kept, {"now": now, "table": table}).scalar()]
            if not tables:
                return None
        if time.monotonic() > end:
            waited = f"for more than {WAIT_SECONDS:.0f} s"
            return f"another session, a prepared transaction or a replication slot has seen the old rows {waited}"
        time.sleep(0.05)
