"""Proves: a row, key or column that changed by itself is told, and nobody composes of it or writes on top of it."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import Table

from store.catalog import Catalog, schema
from store.catalog.engine import make_engine
from store.catalog.tables import Base, Event, Identity
from store.errors import DamagedError
from tests.store.test_catalog import link, new
from tests.store.test_schema import GOLDEN, url


@pytest.fixture(scope="module")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalog")
    with closing(Catalog(url(folder), folder / "lock")) as opened:
        opened.add_version(new("base", "0", "9", kind="base", statistics=()))
        first, _ = opened.add_version(new("math", "1", "12"))
        second, _ = opened.add_version(new("math", "2", "23"))
        opened.set_tags(second, {"run": "7"})
        opened.set_alias(first, "stable")
        opened.set_alias(second, "stable", protect=True)
        opened.record_composition("d" * 64, {"recipe": {"lam": 0.01}}, [second], "moe", [link("5", "gate", "trained")])
        opened.record_evaluation("d" * 64, "e" * 64, {"figures": {"average": 88.7}})
        third, _ = opened.add_version(new("law", "4", "4"))
        opened.withdraw([third])
        opened.purge([third])
        opened.forget_unreferenced(1, 24)
    return folder


@pytest.fixture
def catalog(_filled: Path, tmp_path: Path) -> Iterator[Catalog]:
    """A catalog of its own with something in every table."""
    shutil.copytree(_filled, tmp_path, dirs_exist_ok=True)
    with closing(Catalog(url(tmp_path), tmp_path / "lock")) as opened:
        yield opened


def change(catalog: Catalog, statement: str) -> None:
    """Change the database as no program of ours does."""
    with closing(sqlite3.connect(str(catalog.engine.url.database))) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
        connection.commit()


@contextmanager
def restored(catalog: Catalog) -> Iterator[None]:
    """Put the database back afterwards as it was."""
    database = str(catalog.engine.url.database)
    with closing(sqlite3.connect(":memory:")) as good, closing(sqlite3.connect(database)) as connection:
        connection.backup(good)
        yield
        catalog.engine.dispose()
        good.backup(connection)


CHECKED = [table for table in Base.metadata.sorted_tables if table not in (Event.__table__, Identity.__table__)]
"""All but the log and the id, which the chain holds."""


@pytest.mark.check(after=4)
@pytest.mark.parametrize("table", CHECKED, ids=str)
def test_every_column_of_every_row_is_held_to_the_log(catalog: Catalog, table: Table) -> None:
    for column in (column.name for column in table.columns):
        with closing(sqlite3.connect(str(catalog.engine.url.database))) as connection:
            row, value = connection.execute(f"SELECT rowid, {column} FROM {table} ORDER BY rowid DESC").fetchone()
        other = value + 100 if isinstance(value, int) else f"{value or ''}x"
        with restored(catalog):
            change(catalog, f"UPDATE {table} SET {column} = '{other}' WHERE rowid = {row}")
            assert catalog.discrepancies(log=True), (column, row, value)
    assert (catalog.discrepancies(log=True), catalog.chain().broken) == ([], None)
    change(catalog, f"DELETE FROM {table} WHERE rowid = (SELECT min(rowid) FROM {table})")
    assert catalog.discrepancies(log=True), "a row that vanished"


ADDED = {
    "version": "INSERT INTO versions VALUES (9, 2, 3, 'x', '{}', 1, 'active', 'now', NULL, NULL)",
    "alias": "INSERT INTO aliases VALUES (2, 'new', 2)",
    "tag": "INSERT INTO tags VALUES (2, 'new', 'x')",
    "trained": f"INSERT INTO composition_arrays VALUES ('{'d' * 64}', 'head', '{'1' * 64}')",
    "member": f"INSERT INTO composition_members VALUES ('{'d' * 64}', 1)",
}


def test_row_that_nobody_wrote_is_told(catalog: Catalog) -> None:
    for what, statement in ADDED.items():
        with restored(catalog):
            change(catalog, statement)
            assert catalog.discrepancies(log=True), what


def test_nothing_is_written_on_top_of_a_changed_row_but_its_withdrawal(catalog: Catalog) -> None:
    change(catalog, "UPDATE tags SET value = 'stolen' WHERE key = 'run'")
    version = catalog.versions("math")[1]
    for call in (
        lambda: catalog.check_name("math"),
        lambda: catalog.set_tags(version, {"a": "b"}),
        lambda: catalog.set_alias(version, "new"),
        lambda: catalog.add_version(new("math", "7", "7")),
    ):
        with pytest.raises(DamagedError, match="rows of version math@2 differ from what was written"):
            call()
    catalog.check_name("base")
    catalog.withdraw([version])
    assert catalog.versions("math")[1].state == "withdrawn"


@pytest.mark.parametrize("number", [1, 2])
def test_name_is_held_to_the_versions_that_the_log_has(catalog: Catalog, number: int) -> None:
    version = f"(SELECT id FROM versions WHERE digest LIKE '{number}%')"
    for table in ("version_arrays", "statistics", "tags", "aliases", "composition_members"):
        change(catalog, f"DELETE FROM {table} WHERE version_id = {version}")
    change(catalog, f"DELETE FROM versions WHERE digest LIKE '{number}%'")
    assert len(catalog.versions("math")) == 1
    with pytest.raises(DamagedError, match="differ from what was written"):
        catalog.check_name("math")


def test_schema_that_was_changed_is_told(catalog: Catalog) -> None:
    statement = "UPDATE sqlite_master SET sql = replace(sql, '{}', '{}') WHERE name = 'tags'"
    for before, after in (("value TEXT", "valuf TEXT"), ("value TEXT", "value TEXS"), (" NOT NULL", " ")):
        with restored(catalog):
            change(catalog, statement.format(before, after))
            catalog.engine.dispose()
            with suppress(DamagedError):
                assert catalog.discrepancies(log=True)
    assert catalog.discrepancies(log=True) == []


def test_event_is_held_to_its_text_and_its_number(catalog: Catalog) -> None:
    last = catalog.events()[0].id
    change(catalog, f"UPDATE events SET id = {last + 4} WHERE id = {last}")
    assert str(catalog.chain().broken).startswith(f"event {last + 4} ")
    change(catalog, f"UPDATE events SET id = {last}, details = ' ' || details WHERE id = {last + 4}")
    assert str(catalog.chain().broken).startswith(f"event {last} ")


SEALED = {"8ea053439e10", "c4d1f0a97b35"}
"""Revisions whose golden catalog has digests of rows from its first event on."""


@pytest.mark.parametrize("revision", sorted({path.stem for path in GOLDEN.glob("*.sqlite")} - SEALED))
def test_older_catalog_is_held_to_the_log_from_its_next_change_on(tmp_path: Path, revision: str) -> None:
    shutil.copy(GOLDEN / f"{revision}.sqlite", tmp_path / "catalog.sqlite")
    engine = make_engine(url(tmp_path))
    schema.upgrade(engine)
    engine.dispose()
    with closing(Catalog(url(tmp_path), tmp_path / "lock")) as catalog:
        assert catalog.discrepancies(log=True) == []
        (code,) = catalog.versions("code")
        change(catalog, "UPDATE versions SET parameters = parameters + 1 WHERE id = 2")
        assert catalog.discrepancies(log=True) == []
        catalog.set_tags(code, {"a": "b"})
        change(catalog, "UPDATE versions SET parameters = parameters + 1 WHERE id = 2")
        assert catalog.discrepancies(log=True) == ["version code@1: the catalog's rows differ from those in the log"]
