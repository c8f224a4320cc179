"""Proves: a server of PostgreSQL that is down, full, read-only or refuses is an error that says what to do."""

import os
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from store.catalog import Catalog
from store.errors import RegError, StorageError
from tests import postgres
from tests.catalogs import Schemas
from tests.store.postgres_catalogs import catalog as catalog
from tests.store.postgres_catalogs import end_sessions
from tests.store.postgres_catalogs import other as other
from tests.store.postgres_catalogs import schemas as schemas
from tests.store.postgres_catalogs import url as url
from tests.store.test_catalog import new

pytestmark = pytest.mark.usefixtures("schemas")
PASSWORD = "hunter2-and-more"


def opened(url: str, tmp_path: Path) -> RegError:
    with pytest.raises(RegError) as caught:
        Catalog(url, tmp_path / "lock")
    assert caught.value.hint
    assert PASSWORD not in f"{caught.value.message} {caught.value.hint}"
    return caught.value


def test_server_that_is_down(tmp_path: Path) -> None:
    error = opened(f"postgresql+psycopg://reg:{PASSWORD}@127.0.0.1:1/registry", tmp_path)
    assert "its server does not answer" in error.message
    assert "postgresql+psycopg://reg:***@127.0.0.1:1/registry" in error.message


def test_database_and_user_that_do_not_exist(postgres_server: str, tmp_path: Path) -> None:
    place = make_url(postgres_server)
    error = opened(place.set(database="nosuch", password=PASSWORD).render_as_string(False), tmp_path)
    assert "the database does not exist" in error.message
    error = opened(place.set(username="nosuch", password=PASSWORD).render_as_string(False), tmp_path)
    assert "the server refuses this user" in error.message


def test_wrong_password_is_refused(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as rules:  # not in tmp_path, which the server may not read
        rules.write("local all reg trust\nlocal all all scram-sha-256\n")
        rules.flush()
        Path(rules.name).chmod(0o644)
        server = make_url(postgres.start(os.getpid(), (f"hba_file={rules.name}",)))
    with postgres.admin(server.render_as_string(hide_password=False)).connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    for password in (f"{PASSWORD}!", None):
        error = opened(server.set(username="guarded", password=password).render_as_string(False), tmp_path)
        assert "password" in error.message
    with closing(
        Catalog(server.set(username="guarded", password=PASSWORD).render_as_string(False), tmp_path / "lock")
    ) as catalog:
        assert catalog.versions() == []


def test_reader_without_permission_to_write_reads(
    catalog: Catalog, url: str, postgres_server: str, tmp_path: Path
) -> None:
    version, _ = catalog.add_version(new())
    schema, role = url.rpartition("%3D")[2], f"reader_{os.getpid()}"
    with postgres.admin(postgres_server).connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    try:
        with closing(Catalog(make_url(url).set(username=role).render_as_string(False), tmp_path / "lock")) as reader:
            assert reader.versions() == [version]
            assert reader.chain() == catalog.chain()
            assert reader.discrepancies(log=True) == []
            with pytest.raises(StorageError, match="lacks a permission") as caught:
                reader.set_alias(version, "stable")
            assert str(caught.value.hint).startswith("GRANT SELECT, INSERT")
    finally:
        with postgres.admin(postgres_server).connect() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_standby_is_read_and_says_why_it_is_not_written(catalog: Catalog, url: str, tmp_path: Path) -> None:
    version, _ = catalog.add_version(new())
    options = f"{make_url(url).query['options']} -cdefault_transaction_read_only=on"
    standby = make_url(url).update_query_dict({"options": options}).render_as_string(False)
    with closing(Catalog(standby, tmp_path / "lock")) as reader:
        assert reader.versions() == [version]
        with pytest.raises(StorageError, match="the database is read-only, as a standby is") as caught:
            reader.set_alias(version, "stable")
        assert caught.value.hint == "name the primary server with --database or REG_DATABASE"
        with pytest.raises(StorageError, match="the database is read-only"), reader.lock("registering"):
            pass


def test_too_many_connections(postgres_server: str, tmp_path: Path, schemas: Schemas) -> None:
    role, place = f"crowd_{os.getpid()}", make_url(schemas.fresh())
    with postgres.admin(postgres_server).connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
        try:
            error = opened(place.set(username=role).render_as_string(False), tmp_path)
            assert "too many connections" in error.message
        finally:
            connection.exec_driver_sql(f"DROP ROLE {role}")


def test_connection_that_was_lost_between_two_transactions_is_made_again(
    catalog: Catalog, postgres_server: str
) -> None:
    version, _ = catalog.add_version(new())
    assert end_sessions(postgres_server, "reg") >= 1
    assert catalog.versions() == [version]
    catalog.set_alias(version, "stable")


def test_connection_that_is_lost_within_a_transaction_leaves_nothing(catalog: Catalog, postgres_server: str) -> None:
    with pytest.raises(RegError) as caught, catalog._writing() as session:  # noqa: PT012
        session.execute(text("INSERT INTO experts (name, kind, created_at) VALUES ('math', 'expert', '')"))
        assert end_sessions(postgres_server, "reg") >= 1
        session.execute(text("SELECT 1"))
    assert caught.value.hint == "repeat the command: what was stored is found again"
    assert catalog.names() == []
    assert catalog.add_version(new())[1]
