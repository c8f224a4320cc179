"""Proves: a catalog copied to another database is the same there: rows, seals, log, id, and the next numbers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, text
from sqlalchemy.orm import Session

from store.catalog import Catalog
from store.catalog import integrity as seals
from store.catalog.copying import copy
from store.catalog.engine import make_engine
from store.catalog.tables import Base
from store.errors import ConflictError, DamagedError, NotFoundError
from tests.catalogs import Schemas
from tests.store.test_catalog import link, new

BOTH = ("sqlite", "postgresql")


@pytest.fixture
def places(postgres_server: str, tmp_path: Path) -> Iterator[dict[str, list[str]]]:
    """Two empty databases of each kind."""
    schemas = Schemas(postgres_server)
    files = [f"sqlite:///{tmp_path / f'catalog-{number}.sqlite'}" for number in range(2)]
    yield {"sqlite": files, "postgresql": [schemas.fresh() for _ in range(2)]}
    schemas.drop()


def fill(url: str, folder: Path) -> None:
    """Make a catalog with a row in every table, and with numbers that were given to what came to nothing."""
    with closing(Catalog(url, folder / "lock")) as catalog:
        first, _ = catalog.add_version(new())
        with pytest.raises(ConflictError):
            catalog.add_version(new(kind="base"))
        second, _ = catalog.add_version(new("a-b", digest="b", arrays="234"))
        catalog.set_alias(second, "stable")
        catalog.record_composition("d" * 64, {"recipe": "ü"}, [first, second], "/out", [link("5", role="trained")])
        catalog.record_evaluation("d" * 64, "e" * 64, {"figures": 1.5})
        catalog.withdraw([first])
        catalog.purge([first])


def content(url: str, folder: Path) -> tuple[object, ...]:
    """Return all rows but for the numbers of events, the digests of all groups, the log's state, and the id."""
    with closing(Catalog(url, folder / "lock")) as catalog, Session(catalog.engine) as session:
        rows = {}
        for table in Base.metadata.sorted_tables:
            found = [tuple(row) for row in session.execute(select(table).order_by(*seals.in_order(table)))]
            rows[table.name] = [row[1:] for row in found] if table.name == "events" else found
        return rows, dict(seals.now(session)), catalog.chain(), catalog.id, catalog.discrepancies(log=True)


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("source", BOTH)
def test_copy_is_the_same_and_goes_on(places: dict[str, list[str]], tmp_path: Path, source: str, target: str) -> None:
    one, other = places[source][0], places[target][1]
    fill(one, tmp_path)
    before = content(one, tmp_path)
    copied = copy(one, other, tmp_path / "lock")
    assert content(other, tmp_path) == before == content(one, tmp_path)
    assert copied.rows["versions"] == 2
    assert copied.rows["events"] == copied.events == 8
    with closing(Catalog(other, tmp_path / "lock")) as catalog:
        version, added = catalog.add_version(new("new", digest="f", arrays="6"))
        assert (version.ref, added) == ("new@1", True)
        assert catalog.add_version(new("a-b", digest="a", arrays="7"))[0].ref == "a-b@2"
        assert catalog.chain().events == 10
        assert catalog.chain().broken is None


@pytest.mark.parametrize("target", BOTH)
def test_target_may_be_an_empty_catalog_and_none_with_rows(
    places: dict[str, list[str]], tmp_path: Path, target: str
) -> None:
    one, other = places["sqlite"][0], places[target][1]
    fill(one, tmp_path)
    Catalog(other, tmp_path / "lock").close()
    copy(one, other, tmp_path / "lock")
    assert content(other, tmp_path) == content(one, tmp_path)
    with closing(Catalog(other, tmp_path / "lock")) as catalog:
        catalog.add_version(new("mine"))
    before = content(other, tmp_path)
    with pytest.raises(ConflictError, match="holds a catalog already, with rows in"):
        copy(one, other, tmp_path / "lock")
    assert content(other, tmp_path) == before
    with pytest.raises(ConflictError, match="is both source and target"):
        copy(one, one, tmp_path / "lock")


def test_source_without_a_catalog_and_with_a_changed_row(places: dict[str, list[str]], tmp_path: Path) -> None:
    one, other = places["postgresql"][0], places["postgresql"][1]
    with pytest.raises(NotFoundError, match="there is no catalog in"):
        copy(one, other, tmp_path / "lock")
    fill(one, tmp_path)
    with closing(Catalog(one, tmp_path / "lock")) as catalog, catalog.engine.begin() as connection:
        connection.execute(text("UPDATE events SET subject = 'code@1' WHERE subject = 'math@1'"))
    with pytest.raises(DamagedError, match="is not intact: event"):
        copy(one, other, tmp_path / "lock")
    engine = make_engine(other)
    assert not any("versions" in name for name in inspect(engine).get_table_names()), "a copy that was given up"
    engine.dispose()
