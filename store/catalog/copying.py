"""A whole catalog copied to another database: every row, the same registry, one transaction on the target."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Select, Table, delete, func, insert, select, text
from sqlalchemy.orm import Session

from store.catalog import integrity as seals
from store.catalog import schema
from store.catalog.engine import make_engine, place_of, snapshot, translated
from store.catalog.events import chain_of
from store.catalog.locks import locks_of
from store.catalog.tables import Base, Event, Identity
from store.errors import ConflictError, DamagedError, NotFoundError

_BATCH = 500


@dataclass(frozen=True)
class Copied:
    """A catalog that was copied: the URLs have no password, and `id` is the registry's, the same in both."""

    source: str  # the URL it was copied from, with any password hidden
    target: str  # the URL it was copied to, with any password hidden
    id: str  # the registry's id, the same in both
    rows: dict[str, int]  # table → number of rows
    events: int  # number of events of the log
    head: str  # the digest of the last event


def copy(source: str, target: str, lock: Path) -> Copied:
    """Copy the catalog in the database `source` to `target`, which holds none or an empty one.

    The rows, their digests and the log's chain are compared before the copy is committed: it is there as a whole, or
    not at all. `lock` is the file of the registry's lock, where the database has no locks of its own.

    Raises:
        NotFoundError, SchemaError, DamagedError: `source` holds no catalog; one has another schema; it is not intact.
        ConflictError: `target` is `source`, or holds rows; or another process writes for too long.
        InvalidInputError, StorageError: a URL is not one of a database; a database does not answer, or refuses.
    """
    one, other = make_engine(source), make_engine(target)
    try:
        if not schema.check(one):
            raise NotFoundError(f"there is no catalog in {place_of(one)}", "reg config (it shows the catalog's URL)")
        if one.url == other.url:
            raise ConflictError(f"{place_of(one)} is both source and target", "name an empty database as the target")
        schema.check(other)
        with (
            locks_of(one, lock).hold("copying the catalog"),
            translated(one),
            snapshot(one).connect() as reading,
            translated(other),
            other.execution_options(writing=True).begin() as writing,
        ):
            return _copy(reading, writing)
    finally:
        one.dispose()
        other.dispose()


def _copy(reading: Connection, writing: Connection) -> Copied:
    source, target = place_of(reading.engine), place_of(writing.engine)
    schema.migrate(writing)
    for table in Base.metadata.sorted_tables:
        if table is not Identity.__table__ and writing.scalar(select(func.count()).select_from(table)):
            raise ConflictError(
                f"the database {target} holds a catalog already, with rows in {table.name}",
                "name an empty database as the target",
            )
    writing.execute(delete(Identity))  # of the catalog that was just made
    rows = {table.name: _copy_table(reading, writing, table) for table in Base.metadata.sorted_tables}
    _set_sequences(writing)
    with Session(reading) as old, Session(writing) as new:
        before, after = chain_of(old), chain_of(new)
        if before.broken is not None or dict(seals.now(old)) != dict(seals.now(new)) or before != after:
            raise DamagedError(
                f"the catalog in {source} is not intact"
                + (f": {before.broken}" if before.broken else ", or did not arrive as it was"),
                "reg verify (it lists every difference); then restore the catalog from a backup",
            )
        return Copied(source, target, old.scalars(select(Identity.id)).one(), rows, after.events, after.head)


def _copy_table(reading: Connection, writing: Connection, table: Table) -> int:
    """Copy the rows of a table in the order of its key, and return how many."""
    renumber = table is Event.__table__ and writing.dialect.name == "sqlite"  # whose numbers have no gaps
    query: Select[tuple[object, ...]] = select(*table.columns).order_by(*seals.in_order(table))
    count = 0
    with reading.execution_options(yield_per=_BATCH).execute(query) as result:
        for part in result.mappings().partitions(_BATCH):
            batch = [
                {**row, "id": number} if renumber else dict(row) for number, row in enumerate(part, start=count + 1)
            ]
            writing.execute(insert(table), batch)
            count += len(batch)
    return count


def _set_sequences(connection: Connection) -> None:
    """Let numbers go on after those of the rows; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        key = table.autoincrement_column
        if key is not None and (last := connection.scalar(select(func.max(key)))) is not None:
            connection.execute(
                text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)"),
                {"table": table.name, "column": key.name, "last": last},
            )
