"""Catalogs in PostgreSQL, a schema each; import the fixtures that a file uses."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from store.catalog import Catalog
from tests import postgres
from tests.catalogs import Schemas


@pytest.fixture
def schemas(postgres_server: str) -> Iterator[Schemas]:
    made = Schemas(postgres_server)
    yield made
    made.drop()


@pytest.fixture
def url(schemas: Schemas) -> str:
    return schemas.fresh()


@pytest.fixture
def catalog(url: str, tmp_path: Path) -> Iterator[Catalog]:
    with closing(Catalog(url, tmp_path / "lock")) as opened:
        yield opened


@pytest.fixture
def other(catalog: Catalog, url: str, tmp_path: Path) -> Iterator[Catalog]:
    """Another process's view of the same catalog."""
    with closing(Catalog(url, tmp_path / "another lock")) as opened:
        yield opened


def end_sessions(server: str, application: str) -> int:
    """End the sessions whose application name contains a text; return how many."""
    query = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND application_name LIKE :name AND datname = current_database()"
    )
    with postgres.admin(server).connect() as connection:
        return int(connection.execute(text(query), {"name": f"%{application}%"}).scalar_one())
