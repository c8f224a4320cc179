"""Proves: a home of every earlier revision is upgraded, with a copy of its catalog kept, and then used as any other.

The golden homes were written by the programs of their time: tests/store/make_golden_home.py.
"""

import os
import shutil
import signal
import sqlite3
import warnings
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, event

from cli.main import main
from registry import Recipe, Registry
from registry.errors import NotFoundError, SchemaError, StorageError
from registry.maintenance.catalog_schema import revisions, upgrade
from store.catalog import files, schema
from store.catalog.tables import VERSION_TABLE
from tests.conftest import files_of
from tests.store.make_golden_home import RECIPES
from tests.store.test_schema import GOLDEN, REVISIONS

OLDER = [revision for revision in REVISIONS if revision != schema.HEAD]


def unpacked(revision: str, place: Path) -> Path:
    """Return a home of `revision`."""
    with zipfile.ZipFile(GOLDEN / f"{revision}.zip") as archive:
        archive.extractall(place)
    return place / "home"


def revision_of(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(*connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone())


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What is composed now in the newest golden home, whose checkpoints are those of all: recipe → weights."""
    place = tmp_path_factory.mktemp("today")
    with Registry(unpacked(schema.HEAD, place)) as registry:
        return {name: composed(registry, place / name, name) for name in RECIPES}


def composed(registry: Registry, out: Path, name: str) -> bytes:
    registry.compose(["math", "code"], out, Recipe(**RECIPES[name]))
    return (out / "model.safetensors").read_bytes()


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("revision", REVISIONS)
def test_golden_home_is_upgraded_and_used(revision: str, tmp_path: Path, today: dict[str, bytes]) -> None:
    home = unpacked(revision, tmp_path)
    if revision in OLDER:
        with pytest.raises(SchemaError, match=f"has schema {revision}"):
            Registry(home)
    arrays = files_of(home / "arrays")
    done = upgrade(home)
    assert (done.before, done.after, done.backup is not None) == (revision, schema.HEAD, revision in OLDER)
    assert files_of(home / "arrays") == arrays
    with Registry(home) as registry:
        assert [v.ref for v in registry.versions(everything=True)] == ["base@1", "code@1", "math@1", "math@2"]
        assert registry.resolve("math@stable").ref == "math@2"
        verification = registry.verify()
        assert (verification.problems, verification.orphans) == ((), 0)
        has_all_sites = len(registry.resolve("code").statistics) > 1
        for name in RECIPES if has_all_sites else ("mean", "base"):
            assert composed(registry, tmp_path / name, name) == today[name], name
        told = registry.opt_out("math", purge=True, receipt=tmp_path / "receipt.json")
        assert (told.cleared, told.remains) == ((str(done.backup),) if done.backup else (), ())
        assert registry.verify_receipt(tmp_path / "receipt.json").problems == []
        registry.compose(["code"], tmp_path / "after", Recipe(trunk="base"))
        assert (registry.verify().problems, registry.catalog.backups()) == ((), [])


def test_copy_is_the_catalog_as_it_was_and_can_go_back(tmp_path: Path) -> None:
    home = unpacked(OLDER[0], tmp_path)
    with closing(sqlite3.connect(home / "catalog.sqlite")) as reader:  # rows may be in the log of another process
        before = list(reader.iterdump())
    done = upgrade(home)
    assert done.backup is not None
    assert done.backup.parent == home
    assert done.backup.name.startswith(f"catalog.sqlite.{OLDER[0]}.20")
    with closing(sqlite3.connect(done.backup)) as copy:
        assert list(copy.iterdump()) == before
    assert upgrade(home).backup is None  # nothing to do
    shutil.copy(done.backup, home / "catalog.sqlite")
    assert revisions(home) == (OLDER[0], schema.HEAD)
    again = upgrade(home)
    assert again.backup not in (None, done.backup)
    assert done.backup.exists()


def test_command_tells_where_the_copy_is(tmp_path: Path) -> None:
    home = unpacked(OLDER[0], tmp_path)
    told = CliRunner().invoke(main, ["--home", str(home), "db", "upgrade"]).stdout.splitlines()
    (copy,) = home.glob("*.backup")
    assert told == [f"the catalog is at {schema.HEAD} (was at {OLDER[0]})", f"  backup: {copy}"]
    told = CliRunner().invoke(main, ["--home", str(home), "opt-out", "code", "--purge", "--yes"]).stdout.splitlines()
    assert f"  deleted {copy}" in told
    assert not copy.exists()


def test_without_a_copy_nothing_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = unpacked(OLDER[0], tmp_path)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(StorageError, match=r"cannot be copied to .* before it is upgraded: .*No space left on device"):
        upgrade(home)
    assert revisions(home) == (OLDER[0], schema.HEAD)
    assert not [path for path in home.iterdir() if "backup" in path.name]


@pytest.mark.check
def test_upgrade_killed_at_any_statement_leaves_the_catalog_as_it_was(tmp_path: Path, thorough: bool) -> None:
    """From the first revision, so through all: a child dies just before a statement or the commit; then it is repeated.

    Every sixth statement is tried in CI, and every one where all tiers run.
    """
    home = unpacked(OLDER[-1], tmp_path / "start")
    stride, fatal = 1 if thorough else 6, 0
    while True:
        trial = shutil.copytree(home, tmp_path / f"{fatal}")
        with warnings.catch_warnings():  # of forking with threads: the child does nothing else and dies
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _upgrade_and_die(trial, fatal)
        _, status = os.waitpid(child, 0)
        if (ended := os.waitstatus_to_exitcode(status)) == 0:
            break
        assert ended == -signal.SIGKILL
        assert revision_of(trial / "catalog.sqlite") == OLDER[-1]
        assert upgrade(trial).after == schema.HEAD
        with Registry(trial) as registry:
            assert registry.catalog.chain().broken is None
            assert len(registry.versions(everything=True)) == 4
        shutil.rmtree(trial)
        fatal += stride
    assert fatal > 30
    print("killed before", fatal // stride, "of about", fatal, "statements")


def _upgrade_and_die(home: Path, fatal: int) -> None:
    steps = 0

    def step(*_: Any) -> None:
        nonlocal steps
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    event.listen(Engine, "before_cursor_execute", step)
    event.listen(Engine, "commit", step)
    try:
        upgrade(home)
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.sqlite
def test_revisions_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    with pytest.raises(NotFoundError, match="there is no registry at"):
        revisions(home)
    with monkeypatch.context() as patch:  # the default home need not be there
        patch.setattr("registry.home._default", lambda: home)
        assert revisions() == (None, schema.HEAD)
    assert not home.exists()
    assert upgrade(home) == schema.Upgrade(None, schema.HEAD, None)
    assert upgrade(home) == schema.Upgrade(schema.HEAD, schema.HEAD, None)
    assert revisions(home) == (schema.HEAD, schema.HEAD)
    Registry(home).close()
