"""Proves: what only PostgreSQL does: advisory locks with fences, an order of its own, old rows."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from store import lock
from store.catalog import Catalog, files, locks
from store.errors import ConflictError, StorageError
from tests import postgres
from tests.catalogs import Schemas
from tests.store.postgres_catalogs import catalog as catalog
from tests.store.postgres_catalogs import end_sessions
from tests.store.postgres_catalogs import other as other
from tests.store.postgres_catalogs import schemas as schemas
from tests.store.postgres_catalogs import url as url
from tests.store.test_catalog import link, new

pytestmark = pytest.mark.usefixtures("schemas")


def test_lock_excludes_and_says_who_holds_it(
    catalog: Catalog, other: Catalog, schemas: Schemas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.2)
    monkeypatch.setenv("REG_ACTOR", "ada")
    with (
        catalog.lock("collecting garbage"),
        pytest.raises(ConflictError, match=r"registering math: another process \(reg, ada: collecting garbage\)") as no,
        other.lock("registering math", shared=True),
    ):
        pass
    assert no.value.hint == "repeat when it has ended"
    with other.lock("registering math"):
        pass
    with closing(Catalog(schemas.fresh(), tmp_path / "lock")) as apart, catalog.lock("one"), apart.lock("two"):
        assert apart.id != catalog.id  # in a schema of its own


def test_sharers_hold_it_together_and_gc_waits_for_all_of_them(catalog: Catalog, other: Catalog) -> None:
    order: list[str] = []

    def collect() -> None:
        with other.lock("collecting garbage"):
            order.append("collected")

    shared = (catalog.lock("registering a", shared=True), other.lock("registering b", shared=True))
    with ThreadPoolExecutor(1) as pool, shared[0], shared[1]:
        pool.submit(collect)
        time.sleep(0.3)
        order.append("shared")
    assert order == ["shared", "collected"]


def test_machines_do_not_compose_into_one_prefix_at_once(
    catalog: Catalog, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.2)
    monkeypatch.setenv("REG_ACTOR", "ada")
    held = r"composing into s3://b/moe: another process \(reg, ada: composing into s3://b/moe\) has held its lock in "
    with catalog.output_lock("s3://b/moe"):
        with pytest.raises(ConflictError, match=held), other.output_lock("s3://b/moe"):
            pass
        with other.output_lock("s3://b/other"), other.lock("registering math"):
            pass
    with catalog.output_lock("/tmp/moe"), other.output_lock("/tmp/moe"), other.output_lock("s3://b/moe"):
        pass  # a path is a folder of one machine


def test_writer_that_lost_its_lock_is_refused_and_repeating_it_works(
    catalog: Catalog, other: Catalog, postgres_server: str
) -> None:
    with pytest.raises(ConflictError, match=r"held the lock of the registry in .* was lost") as refused:  # noqa: PT012, SIM117
        with catalog.lock("registering math"):
            assert end_sessions(postgres_server, "registering math") == 1
            with other.lock("collecting garbage"):
                assert other.referenced() == set()
            catalog.add_version(new())
    assert refused.value.hint == "repeat the command: what was stored is found again"
    assert other.versions() == []
    with catalog.lock("registering math"):
        assert catalog.add_version(new())[1]
    assert other.chain().events == 1


def test_holder_after_a_lost_lock_waits_for_the_writer_that_passed_its_check(
    catalog: Catalog, other: Catalog, postgres_server: str
) -> None:
    """A writer that checked its lock commits before the next holder reads what is referenced: nothing is lost."""
    seen: list[set[str]] = []
    rows = (
        f"arrays VALUES ('{'1' * 64}', 'float32', '[2, 3]', 24)",
        "experts (name, kind, created_at) VALUES ('math', 'expert', '')",
        "versions (expert_id, number, digest, parameters, state, created_at) VALUES (1, 1, 'x', 6, 'active', '')",
        f"version_arrays VALUES (1, 'trunk', 'w', '{'1' * 64}')",
    )

    def collect() -> None:
        with other.lock("collecting garbage"):
            seen.append(other.referenced())

    with ThreadPoolExecutor(1) as pool, catalog.lock("registering math"):
        with catalog._writing() as session:  # as `add_version` does
            end_sessions(postgres_server, "registering math")
            collecting = pool.submit(collect)
            time.sleep(0.5)
            assert seen == []
            for row in rows:
                session.execute(text(f"INSERT INTO {row}"))
        collecting.result(10)
    assert seen == [{"1" * 64}]


def test_nothing_is_deleted_once_the_lock_is_lost(catalog: Catalog, postgres_server: str) -> None:
    deleted = []
    with catalog.lock("collecting garbage"):
        with catalog.holding():
            deleted.append("first")
        end_sessions(postgres_server, "collecting garbage")
        with pytest.raises(ConflictError, match="was lost"), catalog.holding():
            deleted.append("second")
    assert deleted == ["first"]


def test_lock_of_a_killed_process_is_free(catalog: Catalog, url: str, tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from store.catalog import Catalog\n"
        "with Catalog(sys.argv[1], Path(sys.argv[2])).lock('registering'):\n"
        "    print('held', flush=True); os.kill(os.getpid(), 9)\n"
    )
    words = [sys.executable, "-c", program, url, str(tmp_path / "lock")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-9, "held\n"), done.stderr
    with catalog.lock("registering"):
        pass


# -- errors ------------------------------------------------------------------------------------------------------------


def test_transaction_that_loses_to_another_is_repeated(catalog: Catalog) -> None:
    """A trigger refuses the first two insertions as a deadlock does."""
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE tries")
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF nextval('tries') < 3 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF; "
            "RETURN NEW; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    assert catalog.add_version(new())[1]
    assert catalog.chain().events == 1
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("ALTER SEQUENCE tries RESTART WITH -1000 MINVALUE -1000")
    with pytest.raises(StorageError, match="another transaction was in the way, several times"):
        catalog.add_version(new("code"))
    assert catalog.names() == ["math"]


# -- what a purge leaves -----------------------------------------------------------------------------------------------


def test_purge_waits_for_readers_of_old_rows_and_says_so(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    version, _ = catalog.add_version(new())
    assert catalog.erase() is None
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.3)
    with catalog._reading() as session:
        session.execute(text("SELECT count(*) FROM versions"))
        catalog.withdraw([version])
        catalog.purge([version])
        assert "has seen the old rows for more than 0 s" in str(catalog.erase())
    assert catalog.erase() is None


def test_purge_waits_for_what_no_list_of_sessions_shows(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    version, _ = catalog.add_version(new())
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.3)
    with closing(catalog.engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SHOW max_prepared_transactions")
        if cursor.fetchall() == [("0",)]:
            pytest.skip("the server prepares no transactions")  # TEST_DB_URL names a server of its own
        cursor.execute("CREATE TABLE held (number int)")
        cursor.execute("PREPARE TRANSACTION 'held'")
        connection.commit()
    catalog.withdraw([version])
    catalog.purge([version])
    said = catalog.erase()
    with catalog.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as session:
        session.exec_driver_sql("ROLLBACK PREPARED 'held'")
    assert "a prepared transaction or a replication slot has seen the old rows" in str(said)
    assert catalog.erase() is None


def test_purge_does_not_wait_for_those_that_wait_for_its_lock(
    catalog: Catalog, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that waits sees the old rows; it is short, and the next one sees them no more."""
    monkeypatch.setattr(locks, "_STATEMENT_SECONDS", 0.1)
    monkeypatch.setattr(files, "WAIT_SECONDS", 3.0)
    version, _ = catalog.add_version(new("math"))
    waiting, entered = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with other.lock("registering"):
            entered.set()

    with ThreadPoolExecutor(1) as pool, catalog.lock("purging"):
        pool.submit(wait)
        waiting.wait()
        time.sleep(0.5)
        catalog.withdraw([version])
        catalog.purge([version])
        assert catalog.erase() is None
        assert not entered.is_set()
    assert entered.is_set()


def test_holder_waits_for_a_writer_longer_than_one_statement(
    catalog: Catalog, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_STATEMENT_SECONDS", 0.05)
    began, written = threading.Event(), threading.Event()

    def write() -> None:
        with other._writing():
            began.set()
            time.sleep(0.5)
            written.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        began.wait(10)
        with catalog.lock("collecting garbage"):
            assert written.is_set()


def test_no_file_of_the_tables_holds_a_purged_label(catalog: Catalog, postgres_server: str, url: str) -> None:
    """The label stands in a column, in the server's samples of its values, and, being long, out of line."""
    folder = make_url(postgres_server).query.get("host")
    if not isinstance(folder, str) or not (Path(folder) / "data").is_dir():
        pytest.skip("the server's files are elsewhere")  # TEST_DB_URL names a server of its own
    secret = "Seldom-Seen-Label"
    for number in range(3):
        catalog.add_version(new(digest=str(number), tags={secret: secret}, arrays=str(number + 1)))
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE tags")
    assert holding(Path(folder), secret, postgres_server)
    versions = catalog.versions()
    catalog.withdraw(versions)
    catalog.purge(versions)
    assert catalog.erase() is None
    assert catalog.beyond is not None
    assert "write-ahead log" in catalog.beyond
    assert holding(Path(folder), secret, postgres_server) == []


def holding(folder: Path, words: str, server: str) -> list[Path]:
    """Return the files of a cluster that hold some words, but for its write-ahead log."""
    with postgres.admin(server).connect() as connection:
        connection.exec_driver_sql("CHECKPOINT")
    found = []
    for path in (folder / "data" / "base").rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            if words.encode() in path.read_bytes():
                found.append(path)
    return found


# -- order -------------------------------------------------------------------------------------------------------------

NAMES = ("a-b", "a_b", "ab", "A-b", "b", "B", "a1", "a10", "a2", "a.b", "Zeta", "zeta")


def test_everything_is_in_the_same_order_and_has_the_same_seals(catalog: Catalog, tmp_path: Path) -> None:
    with postgres.admin(catalog.engine.url.render_as_string(False)).connect() as connection:
        ordered = [
            *connection.scalars(text("SELECT x FROM unnest(CAST(:names AS text[])) x ORDER BY x"), {"names": [*NAMES]})
        ]
        database = text("SELECT to_jsonb(d)::text FROM pg_database d WHERE datname = current_database()")
        order = str(connection.scalar(database)).replace("_", "-")
    with closing(Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}", tmp_path / "lock")) as files:
        found = [facts(each) for each in (files, catalog)]
    assert found[0] == found[1]
    assert found[0]["names"] == sorted(NAMES)
    if "en-US" in order:
        assert ordered != sorted(NAMES), "the server would order them so by itself"


def facts(catalog: Catalog) -> dict[str, object]:
    """Return what a catalog says after the same registrations, but for times."""
    for name in NAMES:
        tags = dict.fromkeys(NAMES, "Ä value")
        arrays = tuple(link(str(number), f"w{tag}") for number, tag in enumerate("b-1_A"))
        version, _ = catalog.add_version(new(name, tags=tags, arrays=""))
        catalog.set_alias(version, "Stable")
        catalog.set_alias(version, "a-stable")
        catalog.record_composition(name.encode().hex().ljust(64, "0"), {"n": name}, [version], "/out", arrays)
    return {
        "names": catalog.names(),
        "versions": [(v.ref, v.tags, v.aliases) for v in catalog.versions()],
        "page": [v.ref for v in catalog.versions(limit=3, offset=2)],
        "tags": [(t.key, t.value) for t in catalog.tag_counts(20)],
        "found": [v.ref for v in catalog.versions(search="A-B")],
        "umlauts": [len(catalog.versions(search=word)) for word in ("Ä", "ä", "value", "VALUE", "ZETA@stable")],
        "arrays": [[a.name for a in catalog.trained_arrays(c.digest)] for c in catalog.compositions()],
        "members": [c.members for c in catalog.compositions()],
        "users": catalog.users_of("1" * 64),
        "log of a": [(e.subject, e.action) for e in catalog.events("zeta")],
        "rows": catalog.discrepancies(log=True),
    }


# -- the server of the tests -------------------------------------------------------------------------------------------


def test_cluster_ends_with_the_process_that_owns_it() -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        try:
            folder = Path(str(make_url(postgres.start(owner.pid)).query["host"]))
            assert (folder / "data").is_dir()
        finally:
            owner.kill()
    end = time.monotonic() + 30
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not folder.exists()


@pytest.mark.trust(after=3)
@pytest.mark.parametrize(
    ("change", "table"),
    [
        ("ALTER TABLE tags ALTER COLUMN value TYPE VARCHAR(7)", "tags"),
        ("ALTER TABLE versions DROP CONSTRAINT uq_versions_expert_id", "versions"),
        ("ALTER TABLE tags DROP CONSTRAINT fk_tags_version_id", "tags"),
        ("DROP INDEX ix_events_subject", "events"),
    ],
)
def test_schema_that_was_changed_is_told(catalog: Catalog, change: str, table: str) -> None:
    assert catalog.discrepancies(log=False) == []
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql(change)
    (problem,) = catalog.discrepancies(log=False)
    assert problem.startswith(f"the catalog's schema: table {table} ")
