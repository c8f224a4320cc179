"""Transactions of the catalog, and the log that they write."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from store.catalog.engine import translated
from store.catalog.records import VersionRecord
from store.catalog.tables import Event, Identity, Version
from store.digest import canonical_json, json_digest
from store.errors import ConflictError, DamagedError


def now() -> str:
    """Return the time in UTC, to the microsecond, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def event_digest(before: str, at: str, action: str, subject: str, details: Any) -> str:
    """Return the digest of a line of the log; `before` is the digest of the line before, or the registry's id.

    Raises:
        ValueError: `details` hold a number that JSON cannot represent.
    """
    return json_digest([before, at, action, subject, details])


def log(session: Session, action: str, subject: str, **details: Any) -> None:
    """Add a line to the log; only within `_writing`, which excludes other writers, is the last line known."""
    session.flush()
    last = session.scalar(select(Event.digest).order_by(Event.id.desc()).limit(1))
    before, at = last or session.scalars(select(Identity.id)).one(), now()
    digest = event_digest(before, at, action, subject, details)
    session.add(Event(at=at, action=action, subject=subject, details=canonical_json(details), digest=digest))


def read_document(text: object, subject: str) -> Any:
    """Return the parsed content of a column with JSON.

    Raises:
        DamagedError: the column does not hold valid JSON.
    """
    try:
        if isinstance(text, str):
            return json.loads(text)
    except (ValueError, RecursionError):
        pass
    raise DamagedError(f"the catalog is damaged: {subject} is not valid JSON", "reg verify")


class Transactions:
    """Reading and writing transactions on one database."""

    engine: Engine

    def create(self) -> None:
        """Create the catalog if it does not exist yet."""

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with translated(self.engine), Session(self.engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """Open a session for one writing transaction; other writers wait until it has ended."""
        self.create()
        with (
            translated(self.engine),
            Session(self.engine.execution_options(writing=True)) as session,
            session.begin(),
        ):
            # One writer at a time, as with SQLite: two writers that saw the same last line would fork the log.
            session.execute(select(Identity.id).with_for_update())
            yield session

    @staticmethod
    def _active(session: Session, version: VersionRecord) -> Version:
        row = session.get_one(Version, version.id)
        if row.state != "active":
            raise ConflictError(f"{version.ref} was opted out at {row.withdrawn_at}", "reg list")
        return row
