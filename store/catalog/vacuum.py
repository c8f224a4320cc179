"""Removal of deleted rows from the files of a database.

SQLite overwrites deleted rows (`secure_delete`), but early versions of this program did not ask it to, and the
write-ahead log still holds the old pages. So the file is rewritten, and the log is copied into it and truncated, which
waits for readers. PostgreSQL rewrites its tables; its write-ahead log, archives, replicas and backups are out of reach.
"""

import sqlite3
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from store.catalog.engine import file_of, place_of
from store.catalog.tables import Base

WAIT_SECONDS = 30.0
"""Seconds to wait for other processes that read."""


def erase(engine: Engine) -> str | None:
    """Remove deleted rows from the database's files; return the obstacle if that is impossible, else None."""
    file = file_of(engine)
    if file is not None:
        return _erase_sqlite(file)
    if engine.dialect.name == "postgresql":
        return _erase_postgresql(engine)
    if engine.url.database in (None, "", ":memory:"):
        return None
    return f"the database {place_of(engine)} cannot rewrite its files"


def _erase_sqlite(file: Path) -> str | None:
    try:
        connection = sqlite3.connect(file, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            for pragma in ("secure_delete = ON", "temp_store = MEMORY", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        if "locked" not in str(error) and "busy" not in str(error):
            return f"{file} cannot be rewritten: {error}"
        busy = 1
    if not busy:
        return None
    return f"another process has used {file.name} for more than {WAIT_SECONDS:.0f} s: old pages stay in its log"


def _erase_postgresql(engine: Engine) -> str | None:
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"SET lock_timeout = '{WAIT_SECONDS:.0f}s'")
            for table in Base.metadata.sorted_tables:
                connection.exec_driver_sql(f"VACUUM (FULL) {table.name}")
            connection.exec_driver_sql("RESET lock_timeout")
    except DBAPIError as error:
        return f"the database cannot rewrite its tables: {str(error.orig).strip()}"
    return None
