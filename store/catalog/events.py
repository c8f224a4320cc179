"""The catalog's log: a chain, in which each event's digest is taken over its own content and the digest before it.

Who changes, removes or inserts an event breaks the chain there. Events missing at its end, or a log made anew from
its beginning, are told by a digest that was noted elsewhere, as a receipt notes it.
"""

from contextlib import closing

from sqlalchemy import select

from store.catalog.records import Chain, EventRecord
from store.catalog.tables import Event, Identity
from store.catalog.transactions import Transactions, event_digest, read_document
from store.digest import canonical_json
from store.errors import DamagedError

_BATCH = 1000
"""Events that are read at once."""


class Events(Transactions):
    """The part of the catalog that tells what happened."""

    def events(
        self, subject: str | None = None, limit: int | None = None, before: int | None = None
    ) -> list[EventRecord]:
        """Return the log, newest first, narrowed to one name (or version, or digest) and to `limit` lines.

        Args:
            subject: see above.
            limit: see above.
            before: only events older than the one with this id.

        Raises:
            DamagedError: the details of one are no JSON.
        """
        query = select(Event).order_by(Event.id.desc())
        if subject is not None:
            query = query.where((Event.subject == subject) | Event.subject.startswith(f"{subject}@", autoescape=True))
        if before is not None:
            query = query.where(Event.id < before)
        if limit is not None:
            query = query.limit(limit)
        with self._reading() as session:
            return [_event(row) for row in session.scalars(query)]

    def chain(self) -> Chain:
        """Follow the log from its beginning, and return how far it holds."""
        query = select(Event).order_by(Event.id).execution_options(yield_per=_BATCH)
        with self._reading() as session:
            head, count = session.scalars(select(Identity.id)).one(), 0
            gaps = self.engine.dialect.name != "sqlite"  # where a transaction that fails uses up a number
            with closing(session.scalars(query)) as rows:
                for row in rows:
                    try:
                        details = read_document(row.details, "the log")
                        digest = event_digest(head, row.at, row.action, row.subject, details)
                        sound = canonical_json(details) == row.details and (gaps or row.id == count + 1)
                    except (DamagedError, TypeError, ValueError):  # no JSON, or no text
                        digest, sound = "", False
                    if not sound or digest != row.digest:
                        return Chain(count, head, f"event {row.id} ({row.action} {row.subject}, {row.at})")
                    head, count = digest, count + 1
        return Chain(count, head)


def _event(row: Event) -> EventRecord:
    details = read_document(row.details, f"event {row.id} of the log")
    return EventRecord(row.id, row.at, row.action, row.subject, details, row.digest)
