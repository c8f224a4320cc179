"""Copies of a SQLite database beside it, made before its schema changes."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine

from store.arrays import flush
from store.catalog.engine import file_of
from store.errors import StorageError

_SUFFIX = ".backup"


def backup(engine: Engine, revision: str) -> Path | None:
    """Copy a SQLite database at `revision` beside itself and return the copy; None if the database is not a file.

    The name contains the revision and the time, so an existing file is never replaced.

    Raises:
        StorageError: the copy cannot be written.
    """
    file = file_of(engine)
    if file is None:
        return None
    name = f"{file.name}.{revision}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    partial = file.with_name(f"{name}.partial{_SUFFIX}")
    path = file.with_name(f"{name}{_SUFFIX}")
    try:
        source, target = sqlite3.connect(file), sqlite3.connect(partial)
        try:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, without a log beside it
        finally:
            source.close()
            target.close()
        flush(partial)
        partial.rename(path)  # the time is in its name, and upgrades exclude one another: it replaces nothing
        flush(path.parent)
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        raise StorageError(
            f"the catalog {file} cannot be copied to {path} before it is upgraded: {error}",
            "free some space on that disk, then repeat the command",
        ) from error
    return path


def backups(engine: Engine) -> list[Path]:
    """Return the copies of a database beside it, including unfinished ones and SQLite's auxiliary files."""
    file = file_of(engine)
    if file is None or not file.parent.is_dir():
        return []
    siblings = file.parent.iterdir()
    return sorted(path for path in siblings if path.name.startswith(f"{file.name}.") and _SUFFIX in path.suffix)
