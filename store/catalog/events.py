"""The catalog's log: a hash chain, in which each event's digest covers its content and the digest before it.

Changing, deleting or inserting an event breaks the chain at that point. Events missing at the end, or a log rewritten
from the beginning, are detected by comparison with a digest kept elsewhere, such as in a receipt.
"""

from contextlib import closing

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store.catalog.records import Chain, EventRecord
from store.catalog.tables import Event, Identity
from store.catalog.transactions import Transactions, event_digest, read_document
from store.digest import canonical_json
from store.errors import DamagedError

_BATCH = 1000  # number of events read at once


class Events(Transactions):
    """The part of the catalog that reads and verifies the log."""

    def events(
        self, subject: str | None = None, limit: int | None = None, before: int | None = None
    ) -> list[EventRecord]:
        """Return events of the log, newest first (DamagedError: the details of one are not valid JSON).

        `subject` is a name (with its versions), a version or a digest; `before` the id of a later event.
        """
        query = select(Event).order_by(Event.id.desc())
        if subject is not None:
            versions = func.substr(Event.subject, 1, len(subject) + 1) == f"{subject}@"  # LIKE may ignore case
            query = query.where((Event.subject == subject) | versions)
        if before is not None:
            query = query.where(Event.id < before)
        if limit is not None:
            query = query.limit(limit)
        with self._reading() as session:
            return [_event(row) for row in session.scalars(query)]

    def opt_outs_since(self, event: int, digest: str) -> tuple[tuple[int, str], list[EventRecord]]:
        """Return id and digest of the newest event, and opt-outs and purges, oldest first (errors as `events`).

        Only those after an event are returned if the log has it, and all of them if it has not: it is another log, or
        was cut off. Reads few rows.
        """
        newest = select(func.max(Event.id)).scalar_subquery()
        after = (Event.id > event) & Event.action.in_(("opt-out", "purge"))
        query = select(Event).where((Event.id == event) | (Event.id == newest) | after).order_by(Event.id)
        with self._reading() as session:
            rows = session.scalars(query).all()
            if event and not any((row.id, row.digest) == (event, digest) for row in rows):
                return self.opt_outs_since(0, "")
            found = [_event(row) for row in rows if row.id > event and row.action in ("opt-out", "purge")]
            return ((rows[-1].id, rows[-1].digest) if rows else (0, "")), found

    def chain(self) -> Chain:
        """Verify the log from its beginning, and return the part that is intact."""
        with self._reading() as session:
            return chain_of(session)


def chain_of(session: Session) -> Chain:
    """Verify the log from its beginning, and return the part that is intact."""
    query = select(Event).order_by(Event.id).execution_options(yield_per=_BATCH)
    head, count = session.scalars(select(Identity.id)).one(), 0
    gaps = session.get_bind().dialect.name != "sqlite"  # elsewhere a failed transaction uses up a number
    with closing(session.scalars(query)) as rows:
        for row in rows:
            try:
                details = read_document(row.details, "the log")
                digest = event_digest(head, row.at, row.action, row.subject, details)
                sound = canonical_json(details) == row.details and (gaps or row.id == count + 1)
            except (DamagedError, TypeError, ValueError):  # not JSON, or not text
                digest, sound = "", False
            if not sound or digest != row.digest:
                return Chain(count, head, f"event {row.id} ({row.action} {row.subject}, {row.at})")
            head, count = digest, count + 1
    return Chain(count, head)


def _event(row: Event) -> EventRecord:
    details = read_document(row.details, f"event {row.id} of the log")
    return EventRecord(row.id, row.at, row.action, row.subject, details, row.digest)
