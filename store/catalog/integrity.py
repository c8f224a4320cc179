"""Integrity checks of the catalog: its pages, its schema, and every row against the log."""

from collections.abc import Iterator

from sqlalchemy import Engine, UniqueConstraint, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from store.catalog import row_digests as seals
from store.catalog.tables import Base, Event, Expert, Version
from store.catalog.transactions import Transactions

_PAGES_SHOWN = 5


class Checks(Transactions):
    """The part of the catalog that detects changes made by other means than this program."""

    def check_name(self, name: str) -> None:
        """Compare the rows of a name, its aliases and all of its versions with the log.

        Raises:
            DamagedError: the rows differ from what was written.
        """
        with self._reading() as session:
            seals.check_name(session, name)

    def discrepancies(self, *, log: bool) -> list[str]:
        """Return one line for each part of the catalog that differs from what was written.

        For SQLite this includes its file's pages and keys, which a server checks itself.

        Args:
            log: compare the rows with the log, which must be intact (`chain`).
        """
        with self._reading() as session:
            return [
                *(_pages(session) if self.engine.dialect.name == "sqlite" else ()),
                *_schema(self.engine),
                *(_rows(session) if log else ()),
            ]


def _pages(session: Session) -> Iterator[str]:
    """Yield the errors that SQLite finds in its file: pages, indexes, types, references."""
    connection = session.connection()
    results = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA integrity_check({_PAGES_SHOWN})")]
    if results != ["ok"]:
        yield from (f"the catalog's file: {line}" for line in results)
    for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(_PAGES_SHOWN):
        yield f"the catalog: row {row} of {table} refers to a missing row of {parent}"


def _schema(engine: Engine) -> Iterator[str]:
    """Yield the tables that differ from what the migrations create."""
    inspector = inspect(engine)
    for name, table in Base.metadata.tables.items():
        try:
            columns = {
                c["name"]: (c["type"].compile(engine.dialect).upper(), c["nullable"])
                for c in inspector.get_columns(name)
            }
            keys = sorted(inspector.get_pk_constraint(name)["constrained_columns"])
            foreign = {
                (*f["constrained_columns"], f["referred_table"], *f["referred_columns"])
                for f in inspector.get_foreign_keys(name)
            }
            unique = {tuple(u["column_names"]) for u in inspector.get_unique_constraints(name)}
            indexes = {
                (i["name"], tuple(i["column_names"]))
                for i in inspector.get_indexes(name)
                if "duplicates_constraint" not in i
            }
        except (DBAPIError, LookupError, TypeError, ValueError) as error:
            yield f"the catalog's schema: table {name} cannot be read: {error}"
            continue
        expected = {c.name: (c.type.compile(engine.dialect).upper(), bool(c.nullable)) for c in table.columns}
        same = (
            columns == expected
            and keys == sorted(c.name for c in table.primary_key.columns)
            and foreign == {(k.parent.name, k.column.table.name, k.column.name) for k in table.foreign_keys}
            and unique
            == {tuple(c.name for c in u.columns) for u in table.constraints if isinstance(u, UniqueConstraint)}
            and indexes == {(str(i.name), tuple(c.name for c in i.columns)) for i in table.indexes}
        )
        if not same:
            yield f"the catalog's schema: table {name} differs from what reg db upgrade creates"


def _rows(session: Session) -> Iterator[str]:
    """Yield the groups of rows that differ from the log."""
    written: dict[str, str] = {}
    added: set[tuple[str, str]] = set()
    query = select(Event.action, Event.subject, Event.details).order_by(Event.id)
    for action, subject, details in session.execute(query):
        written |= seals.rows_in(details)
        if str(action).startswith("add-"):
            added.add((str(action).removeprefix("add-"), str(subject)))
    current = dict(seals.now(session))
    for group in {**written, **current}:
        if group not in current and written[group] != seals.GONE:
            yield f"{group}: the rows are missing from the catalog, though the log has them"
        elif group in written and current.get(group, seals.GONE) != written[group]:
            yield f"{group}: the catalog's rows differ from those in the log"
    versions = select(Expert.kind, Expert.name, Version.number).join(Version, Version.expert_id == Expert.id)
    for kind, name, number in session.execute(versions):
        if (kind, f"{name}@{number}") not in added:
            yield f"version {name}@{number}: the log has no registration of it as {kind}"
