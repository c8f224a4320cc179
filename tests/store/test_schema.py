"""Proves: migrations make exactly the models, an older catalog tells its upgrade command, a newer one is refused.

Every earlier revision is upgraded and used.
"""

import importlib
import inspect
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy import inspect as inspector_of

from store.catalog import Catalog, Chain, schema
from store.catalog.engine import make_engine
from store.catalog.tables import VERSION_TABLE, Base
from store.errors import SchemaError

GOLDEN = Path(__file__).parent / "golden"
REVISIONS = [script.revision for script in ScriptDirectory.from_config(schema._config()).walk_revisions()]


@pytest.fixture(autouse=True)
def _by_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every catalog by the migrations, which elsewhere make the first alone."""
    monkeypatch.setattr(schema, "upgrade", inspect.unwrap(schema.upgrade))


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'catalog.sqlite'}"


def test_head_is_the_newest_migration() -> None:
    script = ScriptDirectory.from_config(schema._config())
    assert script.get_heads() == [schema.HEAD]


def test_migrations_make_exactly_the_models(tmp_path: Path) -> None:
    with closing(Catalog(url(tmp_path), tmp_path / "lock")) as catalog, catalog.engine.connect() as connection:
        assert differences(connection) == []
        assert {VERSION_TABLE, "alembic_version"} & {*inspector_of(connection).get_table_names()} == {VERSION_TABLE}


def differences(connection: Connection) -> list[Any]:
    """Return what migrations would change to come to the models."""
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata))


def test_migrations_import_nothing_of_the_program() -> None:
    folder = Path(importlib.import_module("store.migrations").__path__[0])
    for path in folder.rglob("*.py"):
        assert not any(
            line.startswith(("import store", "from store", "import registry", "from registry"))
            for line in path.read_text().splitlines()
        )


def test_newer_catalog_is_refused(tmp_path: Path) -> None:
    with closing(Catalog(url(tmp_path), tmp_path / "lock")) as catalog, catalog.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = 'ffffffffffff'")
    with pytest.raises(SchemaError, match="ffffffffffff, which is newer than this program's") as caught:
        Catalog(url(tmp_path), tmp_path / "lock")
    assert caught.value.hint == "upgrade the program: pip install --upgrade expert-registry"
    engine = make_engine(url(tmp_path))
    with pytest.raises(SchemaError, match="newer"):
        schema.upgrade(engine)
    engine.dispose()


def test_tables_of_another_program_are_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as connection:
        connection.execute("CREATE TABLE experts (id INTEGER)")
    with pytest.raises(SchemaError, match="another program created it"):
        Catalog(url(tmp_path), tmp_path / "lock")


@pytest.mark.parametrize("revision", REVISIONS)
def test_golden_database_of_each_revision_is_upgraded_and_used(tmp_path: Path, revision: str) -> None:
    """Each revision's golden database was written by the program of its time: `python -m tests.store.make_golden`."""
    shutil.copy(GOLDEN / f"{revision}.sqlite", tmp_path / "catalog.sqlite")
    if revision != schema.HEAD:
        older = f"has schema {revision}, this program works with {schema.HEAD}"
        with pytest.raises(SchemaError, match=older) as caught:
            Catalog(url(tmp_path), tmp_path / "lock")
        assert caught.value.hint == "reg db upgrade"
    engine = make_engine(url(tmp_path))
    assert schema.current(engine) == revision
    done = schema.upgrade(engine)
    assert (done.before, done.after) == (revision, schema.HEAD)
    engine.dispose()
    with closing(Catalog(url(tmp_path), tmp_path / "lock")) as catalog:
        assert len(catalog.id) == 32
        assert [v.ref for v in catalog.versions()] == ["base@1", "code@1", "math@1", "math@2"]
        assert [v.state for v in catalog.versions("math")] == ["purged", "active"]
        assert catalog.alias_target("math", "stable") == 2
        (composition,) = catalog.compositions()
        assert composition.members == ("code@1", "math@2")
        has_trained = revision not in ("52de1a479ec3", "130287142e77", "43cf1e37bcd1", "37ba63a23494")
        has_protected = has_trained and revision != "8ea053439e10"
        assert catalog.versions("math")[1].protected == ("stable",) * has_protected
        assert len(catalog.trained_arrays(composition.digest)) == has_trained
        catalog.record_evaluation(composition.digest, "e" * 64, {"figures": {"average": 88.7}})
        assert [e.document for e in catalog.evaluations(composition.digest)] == [{"figures": {"average": 88.7}}]
        assert len(catalog.arrays_of(catalog.versions("code")[0])) == 2
        catalog.withdraw(catalog.versions("code"))
        catalog.purge(catalog.versions("code"))
        assert catalog.events()[0].action == "purge"
        assert catalog.trained_arrays(composition.digest) == []
        assert catalog.discrepancies(log=True) == []
        assert catalog.chain() == Chain(len(catalog.events()), catalog.events()[0].digest)
