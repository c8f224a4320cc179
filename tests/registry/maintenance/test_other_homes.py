"""Proves: an opt-out from one home leaves nothing of the expert in another that shares its catalog and bucket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from registry import Recipe, Registry, maintenance
from registry.io.work_dirs import resumable
from store.arrays.object_arrays import ObjectArrays
from store.catalog import VersionRecord, copying
from tests.catalogs import Schemas
from tests.conftest import Zoo, files_of
from tests.residue import own_windows, search

PASSED = Recipe(router="ridge", refine=1)
"""A recipe whose statistics are cached."""


@pytest.fixture
def places(postgres_server: str, filled_url: str, _home_of_three: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The catalog and the arrays that all homes share: the base model and three experts."""
    schemas = Schemas(postgres_server)
    database = schemas.fresh()
    copying.copy(f"sqlite:///{_home_of_three / 'catalog.sqlite'}", database, tmp_path / "lock")
    yield {"database": database, "arrays": filled_url}
    schemas.drop()


@pytest.fixture
def here(tmp_path: Path, places: dict[str, Any]) -> Iterator[Registry]:
    with Registry(tmp_path / "here", **places) as opened:
        yield opened


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Another home."""
    return tmp_path / "there"


def bytes_of(registry: Registry, version: VersionRecord) -> list[bytes]:
    return [registry.arrays.read(link.digest).tobytes() for link in registry.arrays_of(version)]


def leave_pass(home: Path, key: str, holds: list[str], content: bytes = b"state") -> Path:
    """Leave the state of an interrupted pass in a home."""
    with pytest.raises(KeyboardInterrupt), resumable(home / "partial", key, holds) as file:  # noqa: PT012
        assert file is not None
        file.write_bytes(content)
        raise KeyboardInterrupt
    return home / "partial" / key / "state.safetensors"


def test_purge_reaches_every_home(tmp_path: Path, here: Registry, there: Path, places: dict[str, Any]) -> None:
    """No window of 16 bytes of its weights or statistics is in any file of the other home once that is opened."""
    with Registry(there, **places) as opened:
        opened.compose(["code", "math", "law"], tmp_path / "moe", PASSED)
        opened.relations("code")
        code, math, law = (opened.resolve(name) for name in ("code", "math", "law"))
        code_bytes, *others = (bytes_of(opened, version) for version in (code, math, law))
    assert code.content is not None
    assert math.content is not None
    leave_pass(there, "theirs", [str(code.content["weights"])], code_bytes[0])
    kept = leave_pass(there, "ours", [str(math.content["weights"])])
    own = own_windows(code_bytes, [blob for of in others for blob in of])
    before = search(there, own)
    assert {Path(name).parts[0] for name in before} >= {"chunks", "partial"}, before
    assert len(files_of(there / "cache")) > 0
    assert all((there / "summaries" / f"{version.digest}.weights").exists() for version in (code, math))
    here.opt_out("code", purge=True)
    assert search(there, own) == before  # the other machine cannot be reached
    with Registry(there, **places) as opened:
        assert search(there, own) == {}
        assert files_of(there / "cache") == {}
        assert (there / "summaries" / f"{math.digest}.weights").exists()
        assert not list((there / "summaries").glob(f"{code.digest}*"))
        assert kept.exists()
        assert set(opened.arrays.cache.digests()) <= opened.catalog.referenced()  # type: ignore[attr-defined]
        opened.compose(["math", "law"], tmp_path / "after", PASSED)
        assert opened.verify().problems == ()
    here.compose(["math", "law"], tmp_path / "same", PASSED)
    assert files_of(tmp_path / "after") == files_of(tmp_path / "same")


def test_command_that_runs_meanwhile_makes_no_copy_again(
    tmp_path: Path, here: Registry, there: Path, places: dict[str, Any], zoo: Zoo
) -> None:
    digest = next(link.digest for link in here.arrays_of(here.resolve("code")) if link.role == "mlp")
    with Registry(there, **places) as running:
        assert isinstance(running.arrays, ObjectArrays)
        key, cache = f"{digest[:2]}/{digest}/zarr.json", running.arrays.cache
        assert cache is not None
        running.compose(["code", "math"], tmp_path / "moe")
        assert digest in cache.digests()
        here.opt_out("code", purge=True)
        Registry(there, **places).close()
        cache.keep(digest, "zarr.json", b"{}")  # it had fetched this just before it was deleted
        assert not cache.path(digest, "zarr.json").exists()
        assert running.arrays.bucket.read(key) is None
        running.add_expert("code", zoo.experts["code"])  # whoever registers it again, has it again
        running.compose(["code", "math"], tmp_path / "again")
        assert cache.path(digest, "zarr.json").exists()
    assert files_of(tmp_path / "again") == files_of(tmp_path / "moe")


def test_withdrawal_clears_what_is_derived_and_keeps_arrays(
    tmp_path: Path, here: Registry, there: Path, places: dict[str, Any]
) -> None:
    with Registry(there, **places) as opened:
        opened.compose(["code", "math"], tmp_path / "moe", PASSED)
        opened.relations("code")
        digest = opened.resolve("code").digest
    state = leave_pass(there, "unknown", ["f" * 64])
    chunks = {name for name in files_of(there / "chunks") if name.endswith("zarr.json")}
    here.opt_out("code")
    with Registry(there, **places):
        assert files_of(there / "cache") == {}
        assert not list((there / "summaries").glob(f"{digest}*"))
        assert {name for name in files_of(there / "chunks") if name.endswith("zarr.json")} == chunks
        assert state.exists()


def test_nothing_happened_is_one_query_and_no_write(here: Registry, there: Path, places: dict[str, Any]) -> None:
    here.opt_out("code", purge=True)
    Registry(there, **places).close()
    mark = there / "log-seen"
    noted, changed = mark.read_text(), mark.stat().st_mtime_ns
    assert int(noted.split()[0]) == here.log(limit=1)[0].id
    here.alias("math", "stable")
    said: list[str] = []
    with Registry(there, **places) as opened:
        kept = leave_pass(there, "unknown", ["f" * 64])

        @event.listens_for(opened.catalog.engine, "before_cursor_execute")
        def note(*told: object) -> None:
            said.append(str(told[2]))

        maintenance.follow_opt_outs(opened._workspace)
    assert [line.split()[0] for line in said] == ["SELECT"]
    assert kept.exists()
    assert (mark.read_text(), mark.stat().st_mtime_ns) == (noted, changed)


def test_mark_that_the_log_does_not_have_counts_as_none(here: Registry, there: Path, places: dict[str, Any]) -> None:
    """Of another catalog, of one that was restored from a backup, or damaged."""
    here.opt_out("code", purge=True)
    newest = here.log(limit=1)[0]
    there.mkdir()
    for noted in ("", "7", "x y z", f"2 {'0' * 64}", f"999999 {'0' * 64}", "-1 a"):
        (there / "log-seen").write_text(noted)
        stale = leave_pass(there, "unknown", ["f" * 64])
        Registry(there, **places).close()
        assert not stale.exists()
        assert (there / "log-seen").read_text() == f"{newest.id} {newest.digest}\n"


def test_long_log_is_looked_through_once(
    here: Registry, there: Path, places: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(there, **places).close()
    assert not (there / "log-seen").exists()
    monkeypatch.setattr("registry.maintenance.garbage.EVENTS", 3)
    Registry(there, **places).close()
    assert int((there / "log-seen").read_text().split()[0]) == here.log(limit=1)[0].id


def test_home_with_its_own_catalog_is_left_alone(tmp_path: Path, zoo: Zoo) -> None:
    with Registry(tmp_path / "home") as registry:
        registry.add_expert("code", zoo.experts["code"])
        registry.opt_out("code", purge=True)
        kept = leave_pass(registry.home.path, "unknown", ["f" * 64])
    Registry(tmp_path / "home").close()
    assert kept.exists()
    assert not (tmp_path / "home" / "log-seen").exists()


def test_damaged_log_is_still_opened(here: Registry, there: Path, places: dict[str, Any]) -> None:
    here.opt_out("code", purge=True)
    with here.catalog.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE events SET details = '{' WHERE action = 'purge'")
    with Registry(there, **places) as opened:
        assert any("log" in problem for problem in opened.verify().problems)
    assert not (there / "log-seen").exists()
