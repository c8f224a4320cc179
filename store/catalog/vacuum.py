"""Taking what was deleted out of the files of a database.

SQLite overwrites what is deleted (`secure_delete`), yet earlier programs did not, and the write-ahead log still holds
pages as they were. So the file is written anew, and the log is emptied into it and cut off, which waits for readers.
PostgreSQL writes its tables anew; its own write-ahead log, its archives, replicas and backups are beyond this.
"""

import sqlite3
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from store.catalog.engine import file_of, place_of
from store.catalog.tables import Base

WAIT_SECONDS = 30.0
"""How long it waits for other processes that read."""


def erase(engine: Engine) -> str | None:
    """Take what was deleted out of the database's files; return what keeps it there, None where nothing does."""
    file = file_of(engine)
    if file is not None:
        return _erase_sqlite(file)
    if engine.dialect.name == "postgresql":
        return _erase_postgresql(engine)
    if engine.url.database in (None, "", ":memory:"):
        return None
    return f"the database {place_of(engine)} cannot be asked to write its files anew"


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
            return f"{file} cannot be written anew: {error}"
        busy = 1
    if not busy:
        return None
    return f"another process reads or writes {file.name}, for more than {WAIT_SECONDS:.0f} s: old pages stay in its log"


def _erase_postgresql(engine: Engine) -> str | None:
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"SET lock_timeout = '{WAIT_SECONDS:.0f}s'")
            for table in Base.metadata.sorted_tables:
                connection.exec_driver_sql(f"VACUUM (FULL) {table.name}")
            connection.exec_driver_sql("RESET lock_timeout")
    except DBAPIError as error:
        return f"the database cannot write its tables anew: {str(error.orig).strip()}"
    return None
