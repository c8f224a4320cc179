"""Whether the catalog still is what was written: its pages, its schema, its log, and every row as the log has it."""

from collections.abc import Iterator

from sqlalchemy import Engine, UniqueConstraint, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from store.catalog import row_digests as seals
from store.catalog.tables import Base, Event, Expert, Version
from store.catalog.transactions import Transactions

_PAGES_SHOWN = 5


class Checks(Transactions):
    """The part of the catalog that finds out what has changed by itself."""

    def check_name(self, name: str) -> None:
        """Hold the rows of a name, its aliases and all of its versions to the log.

        Raises:
            DamagedError: they are not what was written.
        """
        with self._reading() as session:
            seals.check_name(session, name)

    def discrepancies(self, *, log: bool) -> list[str]:
        """Return what is not as it was written, one line each.

        Of SQLite also its pages, keys and schema, which other databases look after themselves.

        Args:
            log: hold the rows to the log, which is whole (`chain`).
        """
        with self._reading() as session:
            sqlite = self.engine.dialect.name == "sqlite"
            return [
                *(_pages(session) if sqlite else ()),
                *(_schema(self.engine) if sqlite else ()),
                *(_rows(session) if log else ()),
            ]


def _pages(session: Session) -> Iterator[str]:
    """Yield what SQLite finds wrong with its file: pages, indexes, types, references."""
    connection = session.connection()
    found = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA integrity_check({_PAGES_SHOWN})")]
    if found != ["ok"]:
        yield from (f"the catalog's file: {line}" for line in found)
    for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(_PAGES_SHOWN):
        yield f"the catalog: row {row} of {table} refers to none of {parent}"


def _schema(engine: Engine) -> Iterator[str]:
    """Yield the tables that are not what the migrations make."""
    found = inspect(engine)
    for name, table in Base.metadata.tables.items():
        try:
            columns = {c["name"]: (str(c["type"]).upper(), c["nullable"]) for c in found.get_columns(name)}
            keys = sorted(found.get_pk_constraint(name)["constrained_columns"])
            foreign = {
                (*f["constrained_columns"], f["referred_table"], *f["referred_columns"])
                for f in found.get_foreign_keys(name)
            }
            unique = {tuple(u["column_names"]) for u in found.get_unique_constraints(name)}
            indexes = {(i["name"], tuple(i["column_names"])) for i in found.get_indexes(name)}
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
            yield f"the catalog's schema: table {name} is not what reg db upgrade makes"


def _rows(session: Session) -> Iterator[str]:
    """Yield the groups of rows that are not what the log says that they are."""
    written: dict[str, str] = {}
    added: set[tuple[str, str]] = set()
    query = select(Event.action, Event.subject, Event.details).order_by(Event.id)
    for action, subject, details in session.execute(query):
        written |= seals.rows_in(details)
        if str(action).startswith("add-"):
            added.add((str(action).removeprefix("add-"), str(subject)))
    found = dict(seals.now(session))
    for group in {**written, **found}:
        if group not in found and written[group] != seals.GONE:
            yield f"{group}: the catalog has no such rows, the log says that it does"
        elif group in written and found.get(group, seals.GONE) != written[group]:
            yield f"{group}: the catalog's rows are not those that the log says were written"
    versions = select(Expert.kind, Expert.name, Version.number).join(Version, Version.expert_id == Expert.id)
    for kind, name, number in session.execute(versions):
        if (kind, f"{name}@{number}") not in added:
            yield f"version {name}@{number}: the log does not tell of its registration as {kind}"
