"""Homes of tests whose catalog is in PostgreSQL and not beside their arrays: a schema each, dropped with the test."""

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable

from registry import home as homes
from store.arrays import FolderArrays
from store.catalog import copying, schema
from store.catalog.engine import make_engine, translated
from store.catalog.tables import VERSION_TABLE, Base
from store.errors import RegError, SchemaError
from tests.postgres import admin, schema_url, url

KINDS = ("sqlite", "postgresql")

COPIES: dict[Path, Path] = {}
"""The home that each copied home was copied from."""

_EMBEDDED = homes._embedded


@dataclass
class Schemas:
    """The schemas that the homes of one test have in the database `server`.

    A home that was copied, with its arrays, gets a copy of the schema of the home in `COPIES`, or of one that the
    arrays belong to; a home with a SQLite catalog of this program's revision has it moved here.
    """

    server: str
    salt: str = field(default_factory=lambda: uuid.uuid4().hex)
    _urls: dict[Path, str] = field(default_factory=dict)

    def url(self, home: Path) -> str:
        """Return the database of a home."""
        if home not in self._urls:
            file = home / "catalog.sqlite"
            name = f"t{hashlib.sha256(f'{self.salt} {home}'.encode()).hexdigest()[:40]}"  # in forks the same
            found = self._moved(file, name) if file.is_file() else self.fresh(name)
            if not file.is_file():
                self._copied(home, found)
            self._urls[home] = found
        return self._urls[home]

    def fresh(self, name: str | None = None) -> str:
        """Return the URL of a schema, which is made where there is none; without a name, of one of its own."""
        name = name or f"t{uuid.uuid4().hex}"
        with admin(self.server).connect() as connection, suppress(IntegrityError):  # another process made it just now
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {name}")
        url = schema_url(self.server, name)
        self._urls[Path("/") / name] = url
        return url

    def drop(self) -> None:
        """Delete all schemas."""
        with admin(self.server).connect() as connection:
            for url in {*self._urls.values()}:
                name = url.rpartition("%3D")[2]
                if name.startswith("t"):
                    connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")

    def _moved(self, file: Path, name: str) -> str:
        url = self.fresh(name)
        try:
            copying.copy(f"sqlite:///{file}", url, file.with_name("lock"))
        except SchemaError:  # of another revision: it stays
            return f"sqlite:///{file}"
        for path in file.parent.glob("catalog.sqlite*"):
            if path.suffix in (".sqlite", ".sqlite-wal", ".sqlite-shm"):
                path.unlink()
        return url

    def _copied(self, home: Path, url: str) -> None:
        owner = None
        with suppress(RegError, OSError):
            owner = FolderArrays(home / "arrays").owner()
        first = [(COPIES[home], self._urls[COPIES[home]])] if COPIES.get(home) in self._urls else []
        for other, source in [*first, *self._urls.items()] if owner else ():
            if other.parent != Path("/") and _identity(source) == owner:
                copying.copy(source, url, home / "lock")
                return


def _identity(url: str) -> str | None:
    engine = make_engine(url)
    try:
        if schema.current(engine) is None:
            return None
        with engine.connect() as connection:
            return str(connection.scalar(text("SELECT id FROM registry")))
    finally:
        engine.dispose()


@contextmanager
def in_schemas(server: str) -> Iterator[Schemas]:
    """Let every home without a named database have its catalog in a schema of `server`."""
    schemas = Schemas(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(homes, "_embedded", schemas.url)
        try:
            yield schemas
        finally:
            schemas.drop()


@contextmanager
def in_files() -> Iterator[None]:
    """Let homes have their catalogs in SQLite: those that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(homes, "_embedded", _EMBEDDED)
        yield


@contextmanager
def in_database(kind: str) -> Iterator[None]:
    """Let homes have their catalogs in a database of a kind: PostgreSQL in a cluster that ends with this process."""
    if kind == "sqlite":
        yield
        return
    with in_schemas(url()):
        yield


_made: dict[str, str] = {}


def make_tables(engine: Engine) -> None:
    """Make a new catalog in PostgreSQL by one request: what the migrations come to, which a test compares."""
    if not _made:
        statements = []
        for table in Base.metadata.sorted_tables:
            statements.append(str(CreateTable(table).compile(engine)))
            statements += [str(CreateIndex(index).compile(engine)) for index in sorted(table.indexes, key=str)]
        statements.append(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        statements.append(f"INSERT INTO {VERSION_TABLE} VALUES ('{schema.HEAD}')")
        _made["statements"] = ";".join(statements)
    with translated(engine), engine.begin() as connection:
        connection.exec_driver_sql(f"{_made['statements']}; INSERT INTO registry VALUES ('{uuid.uuid4().hex}')")


def database_name(place: str, worker: str) -> str:
    """Return the name of a worker's database in a run of tests whose folder is `place`."""
    return f"reg_{worker}_{hashlib.sha256(place.encode()).hexdigest()[:8]}"
