"""Transactions of the catalog, and the log that they write."""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from store.actor import actor
from store.catalog.engine import snapshot, translated
from store.catalog.locks import Locks
from store.catalog.postgresql import LostTransactionError
from store.catalog.records import VersionRecord, spoken
from store.catalog.tables import Event, Identity, Version
from store.digest import canonical_json, json_digest
from store.errors import ConflictError, DamagedError


def now() -> str:
    """Return the time in UTC, to the microsecond, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def event_digest(before: str, at: str, action: str, subject: str, details: Any) -> str:
    """Return the digest of a line of the log; `before` is the digest of the line before, or the registry's id."""
    return json_digest([before, at, action, subject, details])


def log(session: Session, action: str, subject: str, **details: Any) -> None:
    """Add a line to the log, with who acts; only within `_writing`, which excludes other writers, is the last known."""
    details["actor"] = actor()
    session.flush()
    last = session.scalar(select(Event.digest).order_by(Event.id.desc()).limit(1))
    before, at = last or session.scalars(select(Identity.id)).one(), now()
    digest = event_digest(before, at, action, subject, details)
    session.add(Event(at=at, action=action, subject=subject, details=canonical_json(details), digest=digest))


def read_document(text: object, subject: str) -> Any:
    """Return the parsed content of a column with JSON (DamagedError: it is not valid JSON)."""
    try:
        if isinstance(text, str):
            return json.loads(text)
    except (ValueError, RecursionError):
        pass
    raise DamagedError(f"the catalog is damaged: {subject} is not valid JSON", "reg verify")


TRIES = 5  # how often a transaction is tried that loses to others

Kind = TypeVar("Kind", bound=type)


def repeating(catalog: Kind) -> Kind:
    """Let every public method of a catalog, each of which is one transaction, be repeated when it loses to another."""
    for base in catalog.__mro__:
        for name, method in vars(base).items():
            if isinstance(method, FunctionType) and not name.startswith("_") and not hasattr(method, "__wrapped__"):
                setattr(catalog, name, _repeated(getattr(catalog, name)))
    return catalog


def _repeated(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        for attempt in range(1, TRIES):
            try:
                return method(*args, **options)
            except LostTransactionError:
                time.sleep(random.uniform(0, 0.05 * attempt))
        return method(*args, **options)

    return call


class Transactions:
    """Reading and writing transactions on one database."""

    engine: Engine
    _locks: Locks

    def create(self) -> None:
        """Create the catalog if it does not exist yet."""

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with translated(self.engine), Session(snapshot(self.engine)) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """Open a session for one writing transaction; other writers wait until it has ended."""
        self.create()
        options: dict[str, Any] = {"writing": True}
        if self.engine.dialect.name == "postgresql":
            options = {"isolation_level": "READ COMMITTED"}  # after waiting for the row, it sees what others committed
        with translated(self.engine), Session(self.engine.execution_options(**options)) as session, session.begin():
            # One writer at a time, as with SQLite: two writers that saw the same last line would fork the log.
            session.execute(select(Identity.id).with_for_update())
            self._locks.check()
            yield session

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Make sure that the caller's lock of the registry is held during the block (ConflictError: it was lost)."""
        with self._writing() if self.engine.dialect.name == "postgresql" else nullcontext():
            yield

    @staticmethod
    def _active(session: Session, version: VersionRecord) -> Version:
        row = session.get_one(Version, version.id)
        if row.state != "active":
            raise ConflictError(f"{version.ref} was opted out at {spoken(str(row.withdrawn_at))}", "reg list")
        return row
