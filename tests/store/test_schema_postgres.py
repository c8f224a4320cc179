"""Proves: every revision of a catalog is upgraded in PostgreSQL as it is in SQLite, to the same rows."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Engine, MetaData, func, insert, select, text
from sqlalchemy import inspect as inspector_of

from store.catalog import Catalog, schema
from store.catalog.engine import make_engine
from store.catalog.tables import VERSION_TABLE, Base
from store.errors import SchemaError
from tests.catalogs import Schemas, make_tables
from tests.store.postgres_catalogs import schemas as schemas
from tests.store.postgres_catalogs import url as url
from tests.store.test_schema import GOLDEN, REVISIONS, differences
from tests.store.test_schema import _by_migrations as _by_migrations


def load(golden: Path, engine: Engine, revision: str) -> None:
    """Make the tables of a revision by the migrations, and fill them with the rows of a golden database."""
    with engine.begin() as writing:
        command.upgrade(schema._config(writing), revision)
        source = make_engine(f"sqlite:///{golden}")
        tables = MetaData()
        tables.reflect(source)
        with source.connect() as reading:
            for table in tables.sorted_tables:
                rows = [dict(row) for row in reading.execute(select(table)).mappings()]
                if table.name in (VERSION_TABLE, "registry"):
                    writing.execute(text(f"DELETE FROM {table.name}"))
                if rows:
                    writing.execute(insert(table), rows)
                if "id" in table.c and table.name != "registry":
                    last = reading.scalar(select(func.max(table.c.id))) or 1
                    writing.execute(text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), {last})"))
        source.dispose()


def rows_of(engine: Engine) -> dict[str, list[str]]:
    """Return all rows by table, but for what is drawn at an upgrade: the registry's id, and the digests over it."""
    with engine.connect() as connection:
        found = {
            table.name: sorted(
                repr({key: value for key, value in row.items() if (table.name, key) != ("events", "digest")})
                for row in connection.execute(select(table)).mappings()
            )
            for table in Base.metadata.sorted_tables
            if table.name != "registry"
        }
        return found | {"schema": [str(connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")))]}


@pytest.mark.trust(after=2)
@pytest.mark.parametrize("revision", REVISIONS)
def test_golden_rows_of_each_revision_are_upgraded_alike(tmp_path: Path, url: str, revision: str) -> None:
    golden = Path(shutil.copy(GOLDEN / f"{revision}.sqlite", tmp_path / "catalog.sqlite"))
    engine, files = make_engine(url), make_engine(f"sqlite:///{golden}")
    load(golden, engine, revision)
    assert schema.current(engine) == revision
    if revision != schema.HEAD:
        with pytest.raises(SchemaError) as old:
            Catalog(url, tmp_path / "lock")
        assert str(old.value.hint).startswith("pg_dump --format=custom --file=catalog.dump ")
        assert str(old.value.hint).endswith("; reg db upgrade")
    done = schema.upgrade(engine)
    assert (done.before, done.after, done.backup) == (revision, schema.HEAD, None)
    schema.upgrade(files)
    assert rows_of(engine) == rows_of(files)
    files.dispose()
    engine.dispose()
    with closing(Catalog(url, tmp_path / "lock")) as catalog:
        assert catalog.chain().broken is None
        assert catalog.discrepancies(log=True) == []


def test_migrations_make_exactly_the_models_and_the_tests_the_same(schemas: Schemas, url: str, tmp_path: Path) -> None:
    quick, slow = make_engine(schemas.fresh()), make_engine(url)
    make_tables(quick)
    Catalog(url, tmp_path / "lock").close()
    for engine in (slow, quick):
        with engine.connect() as connection:
            assert differences(connection) == []
    assert described(slow) == described(quick)
    slow.dispose()
    quick.dispose()


def described(engine: Engine) -> dict[str, Any]:
    """Return the names and columns of all keys, constraints and indexes, by table."""
    found, inspector = {}, inspector_of(engine)
    for table in Base.metadata.tables:
        foreign = {(str(key["name"]), *key["constrained_columns"]) for key in inspector.get_foreign_keys(table)}
        unique = {(str(key["name"]), *key["column_names"]) for key in inspector.get_unique_constraints(table)}
        indexes = {str(index["name"]) for index in inspector.get_indexes(table)}
        columns = [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)]
        found[table] = (sorted(columns), inspector.get_pk_constraint(table)["name"], foreign, unique, indexes)
    return found
