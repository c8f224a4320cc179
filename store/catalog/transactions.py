"""Transactions of the catalog, and the log that each of them writes to."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from store.catalog.engine import translated
from store.catalog.records import VersionRecord
from store.catalog.tables import Event, Version
from store.digest import canonical_json
from store.errors import ConflictError


def now() -> str:
    """Return the time in UTC, to the microsecond, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def log(session: Session, action: str, subject: str, **details: Any) -> None:
    """Add a line to the log."""
    session.add(Event(at=now(), action=action, subject=subject, details=canonical_json(details)))


class Transactions:
    """What reads and writes one database: each context is one transaction."""

    engine: Engine

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with translated(self.engine), Session(self.engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with (
            translated(self.engine),
            Session(self.engine.execution_options(writing=True)) as session,
            session.begin(),
        ):
            yield session

    @staticmethod
    def _active(session: Session, version: VersionRecord) -> Version:
        row = session.get_one(Version, version.id)
        if row.state != "active":
            raise ConflictError(f"{version.ref} was opted out at {row.withdrawn_at}", "run: reg list")
        return row
