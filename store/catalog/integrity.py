"""Integrity of the catalog: seals, which are digests of rows kept in the log, and checks of rows, schema and pages.

With seals a changed row is detected like a changed event.

Rows that are written together form a group: a name with its aliases; a version with its arrays, statistics and tags;
a composition with its members and trained arrays; an evaluation. Each event carries, under `rows` of its details, the
digest of every group that its transaction changed. The latest digest in the log must match the group's current rows.
After a purge only digests remain.

Events written by early versions carry no seals: their groups are checked from the next change on.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Engine, MetaData, String, Table, UniqueConstraint, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from store.catalog.tables import (
    Alias,
    Array,
    Base,
    Composition,
    CompositionArray,
    CompositionMember,
    Evaluation,
    Event,
    Expert,
    ProtectedAlias,
    Statistics,
    Tag,
    Version,
    VersionArray,
    bytewise,
)
from store.catalog.transactions import Transactions
from store.digest import json_digest
from store.errors import DamagedError

_PAGES_SHOWN = 5
_NONE: Mapping[str, int] = {}
RESTORE = "restore the catalog from a backup"
GONE = "gone"  # the digest recorded for deleted rows

UNREADABLE = "unreadable"  # the digest of rows that cannot be JSON, which this program never writes
Seal = tuple[str, str]  # the name of a group in the log, and the digest of its rows


def name_seal(session: Session, name: str, expert: int) -> Seal:
    """Return the seal of a name and its aliases, and which of them are protected if any is."""
    parts: list[tuple[type[Base], Any]] = [(Expert, Expert.id == expert), (Alias, Alias.expert_id == expert)]
    is_of_it = ProtectedAlias.expert_id == expert
    if session.scalars(select(ProtectedAlias.name).where(is_of_it)).first():  # logs have digests from before
        parts.append((ProtectedAlias, is_of_it))
    return f"name {name}", _digest(session, *parts)


def version_seal(session: Session, ref: str, version: int) -> Seal:
    """Return the seal of a version, its arrays, statistics and tags."""
    arrays = select(VersionArray.digest).where(VersionArray.version_id == version)
    return f"version {ref}", _digest(
        session,
        (Version, Version.id == version),
        (VersionArray, VersionArray.version_id == version),
        (Array, Array.digest.in_(arrays)),
        (Statistics, Statistics.version_id == version),
        (Tag, Tag.version_id == version),
    )


def composition_seal(session: Session, digest: str) -> Seal:
    """Return the seal of a composition, its members, and its trained arrays if it has any."""
    parts: list[tuple[type[Base], Any]] = [
        (Composition, Composition.digest == digest),
        (CompositionMember, CompositionMember.composition_digest == digest),
    ]
    arrays = session.scalars(select(CompositionArray.digest).where(CompositionArray.composition_digest == digest)).all()
    if arrays:  # logs have digests of compositions from before there were any
        parts += [(CompositionArray, CompositionArray.composition_digest == digest), (Array, Array.digest.in_(arrays))]
    return f"composition {digest}", _digest(session, *parts)


def evaluation_seal(session: Session, digest: str, asked: str) -> Seal:
    """Return the seal of an evaluation."""
    is_it = (Evaluation.composition_digest == digest) & (Evaluation.asked == asked)
    return evaluation_group(digest, asked), _digest(session, (Evaluation, is_it))


def evaluation_group(digest: str, asked: str) -> str:
    """Return the name in the log of an evaluation of a composition."""
    return f"evaluation {digest} {asked}"


def seals_of(
    session: Session, *, names: Mapping[str, int] = _NONE, versions: Mapping[str, int] = _NONE
) -> dict[str, str]:
    """Return group → digest for the details of an event; `names` and `versions` map to row ids."""
    session.flush()
    sealed = dict(name_seal(session, name, number) for name, number in names.items())
    return sealed | dict(version_seal(session, ref, number) for ref, number in versions.items())


def check_name(session: Session, name: str) -> None:
    """Compare the rows of a name, its aliases and all of its versions with the log (DamagedError: they differ)."""
    current = dict(_now_of_name(session, name))
    # Versions are numbered without gaps: if one is missing, the log has events of one more than the catalog.
    subjects = [name, *(f"{name}@{number}" for number in range(1, max(len(current), 1) + 1))]
    query = select(Event.details).where(Event.subject.in_(subjects)).order_by(Event.id)
    written: dict[str, str] = {}
    for details in session.scalars(query):
        written |= rows_in(details)
    for group, digest in written.items():
        if group.startswith(("name ", "version ")) and current.get(group) != digest:
            raise DamagedError(
                f"the catalog's rows of {group} differ from what was written",
                f"reg verify (it lists every difference); then {RESTORE}",
            )


def rows_in(details: object) -> dict[str, str]:
    """Return group → digest from the stored details of an event; empty if they hold none."""
    try:
        rows = json.loads(details)["rows"]  # type: ignore[arg-type]
        return {str(group): str(digest) for group, digest in rows.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def now(session: Session) -> Iterator[Seal]:
    """Yield the seals of all rows of the tables."""
    for name in session.scalars(select(Expert.name).order_by(Expert.id)).all():
        yield from _now_of_name(session, name)
    for digest in session.scalars(select(Composition.digest)).all():
        yield composition_seal(session, digest)
    for digest, asked in session.execute(select(Evaluation.composition_digest, Evaluation.asked)).all():
        yield evaluation_seal(session, digest, asked)


def _now_of_name(session: Session, name: str) -> Iterator[Seal]:
    for expert in session.scalars(select(Expert.id).where(Expert.name == name)).all():
        yield name_seal(session, name, expert)
        numbers = select(Version.id, Version.number).where(Version.expert_id == expert)
        for version, number in session.execute(numbers).all():
            yield version_seal(session, f"{name}@{number}", version)


def in_order(table: Table) -> list[ColumnElement[Any]]:
    """Return the primary key, by which the rows of a digest are ordered in every database alike."""
    return [bytewise(key) if isinstance(key.type, String) else key for key in table.primary_key.columns]


def _digest(session: Session, *parts: tuple[type[Base], Any]) -> str:
    rows = []
    for model, condition in parts:
        table = model.__table__
        assert isinstance(table, Table)
        query = select(*table.columns).where(condition).order_by(*in_order(table))
        rows.append([table.name, [list(row) for row in session.execute(query)]])
    try:
        return json_digest(rows)
    except (TypeError, ValueError):  # bytes, or NaN
        return UNREADABLE


class Checks(Transactions):
    """The part of the catalog that detects changes made by other means than this program."""

    def check_name(self, name: str) -> None:
        """Compare the rows of a name, its aliases and all of its versions with the log (DamagedError: they differ)."""
        with self._reading() as session:
            check_name(session, name)

    def discrepancies(self, *, log: bool) -> list[str]:
        """Return one line for each part of the catalog that differs from what was written.

        For SQLite this includes its file's pages and keys, which a server checks itself. With `log`, the rows are
        compared with the log, which must be intact (`chain`).
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
    for name, table in Base.metadata.tables.items():
        try:
            found = Table(name, MetaData(), autoload_with=engine, resolve_fks=False)
        except (DBAPIError, LookupError, TypeError, ValueError) as error:
            yield f"the catalog's schema: table {name} cannot be read: {error}"
            continue
        if _described(found, engine) != _described(table, engine):
            yield f"the catalog's schema: table {name} differs from what reg db upgrade creates"


def _described(table: Table, engine: Engine) -> tuple[object, ...]:
    """Return columns, primary key, references, unique columns and indexes of a table, to be compared."""
    return (
        {column.name: (column.type.compile(engine.dialect).upper(), column.nullable) for column in table.columns},
        {column.name for column in table.primary_key.columns},
        {(key.parent.name, key.target_fullname) for key in table.foreign_keys},
        {tuple(one.columns.keys()) for one in table.constraints if isinstance(one, UniqueConstraint)},
        {(index.name, tuple(index.columns.keys())) for index in table.indexes},
    )


def _rows(session: Session) -> Iterator[str]:
    """Yield the groups of rows that differ from the log."""
    written: dict[str, str] = {}
    added: set[tuple[str, str]] = set()
    query = select(Event.action, Event.subject, Event.details).order_by(Event.id)
    for action, subject, details in session.execute(query):
        written |= rows_in(details)
        if str(action).startswith("add-"):
            added.add((str(action).removeprefix("add-"), str(subject)))
    current = dict(now(session))
    for group in {**written, **current}:
        if group not in current and written[group] != GONE:
            yield f"{group}: the rows are missing from the catalog, though the log has them"
        elif group in written and current.get(group, GONE) != written[group]:
            yield f"{group}: the catalog's rows differ from those in the log"
    versions = select(Expert.kind, Expert.name, Version.number).join(Version, Version.expert_id == Expert.id)
    for kind, name, number in session.execute(versions):
        if (kind, f"{name}@{number}") not in added:
            yield f"version {name}@{number}: the log has no registration of it as {kind}"
