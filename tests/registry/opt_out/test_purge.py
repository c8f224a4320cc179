"""Proves: after a purge no file below the home holds a 16-byte window of the version's weights or statistics.

Nor do the catalog's files hold more of it than name, number, digests and times, whatever was left by commands that were
killed, and whatever is under way meanwhile.
"""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from registry import Recipe, Registry
from registry.errors import ConflictError
from registry.io.work_dirs import resumable, temporary, work_dirs_in
from registry.methods.moe import passes
from registry.progress import Advance
from registry.statistics.collect import collect_to
from registry.statistics.forward_pass import take_statistics
from store.catalog import files
from store.catalog.copying import copy
from store.catalog.tables import Base
from tests.conftest import SETTINGS, Zoo, array_folder
from tests.residue import own_windows, search
from tests.store.postgres_catalogs import schemas as schemas
from tests.store.postgres_catalogs import url as url

MARKS = ("a-secret-tag", "a-secret-license", "a-secret-label", "1234.5678")
PLACES = ("arrays", "cache", "merged", "partial", "summaries", "work")


class Killed(BaseException):
    """In place of SIGKILL."""


def killed(registry: Registry, aside: Path, function: str, action: Callable[[], object]) -> None:
    """Do `action` until it calls `function`, and leave the home's folders as they are then: as SIGKILL leaves them."""
    home = registry.home.path

    def die(*_: Any, **__: Any) -> None:
        for place in ("merged", "work"):
            if (home / place).is_dir():
                shutil.copytree(home / place, aside / place, dirs_exist_ok=True)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, die)
        with pytest.raises(Killed):
            action()
    shutil.copytree(aside, home, dirs_exist_ok=True)


@contextmanager
def stopping(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Interrupt a pass in its middle."""
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        if unit == "token" and done > total // 2:
            raise KeyboardInterrupt

    yield advance


def tensors_of(file: Path, start: int = 0) -> bytes:
    """Return what stands after the header of a safetensors file, which begins at `start`."""
    data = file.read_bytes()[start:]
    return data[8 + int.from_bytes(data[:8], "little") :]


@pytest.fixture(scope="module")
def _lived_in(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with everything: `code` is to be purged, of which passes, merges and compositions were killed, too."""
    place = tmp_path_factory.mktemp("lived-in")
    home, bare = place / "home", shutil.copytree(zoo.experts["code"], place / "bare")
    label = shutil.copy(zoo.train["code"], place / "a-secret-label.jsonl")
    collect_to(bare, bare, data=[label], settings=SETTINGS, keep_calibration=True)
    with Registry(home) as registry:
        registry.add_base("base", zoo.base)
        registry.add_expert("math", zoo.experts["math"])
        registry.add_expert("law", zoo.experts["law"])
        done = registry.add_expert(
            "code", bare, tags={"team": "a-secret-tag"}, license="a-secret-license", alias="stable"
        )
        registry.add_expert("half", zoo.experts["math"])
        registry.opt_out("half", purge=True)  # an earlier purge, of arrays that are needed
        registry.compose(["code", "math"], place / "moe", Recipe(router="ridge", refine=1))
        plan = registry.plan(["code", "math"], Recipe(router="ridge", refine=1))
        figures = {"experts": {"code": done.version.digest}, "figures": {"perplexity": 1234.5678}}
        registry.catalog.record_evaluation(plan.digest, "e" * 64, figures)
        actions: dict[str, Callable[[], object]] = {
            "registry.statistics.collect.load_for_pass": lambda: registry.add_expert(
                "tuned", adapter(place / "lora"), base="code", data=[zoo.train["law"]], settings=SETTINGS
            ),
            "registry.methods.moe.passes.take_statistics": lambda: registry.compose(
                ["code", "math"], place / "other", Recipe(router="ridge", refine=1, trunk="mean")
            ),
        }
        for number, (function, action) in enumerate(actions.items()):
            killed(registry, place / f"killed{number}", function, action)
        registry.progress = stopping
        with pytest.raises(KeyboardInterrupt):
            registry.add_expert("code", bare, data=[zoo.train["law"]], settings=SETTINGS)
        shutil.copy(bare / "statistics.safetensors", home / "partial" / "older.safetensors")
        kept = home / "summaries" / f"{done.version.digest}.weights"
        shutil.copy(kept, kept.with_name(f"{kept.name}.new"))  # as a kill leaves it
        files.backup(registry.catalog.engine, "0123456789ab")
    return home


def adapter(folder: Path) -> Path:
    """Write an adapter of one tensor."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.model.layers.0.mlp.down_proj"
    tensors = {f"{module}.lora_A.weight": torch.ones(2, 64), f"{module}.lora_B.weight": torch.ones(32, 2)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def lived_in(_lived_in: Path, tmp_path: Path) -> Iterator[Registry]:
    with Registry(shutil.copytree(_lived_in, tmp_path / "home")) as registry:
        yield registry


def test_search_finds_every_window_and_no_other(tmp_path: Path) -> None:
    draw = random.Random(0)
    own, other, filler = (draw.randbytes(size) for size in (3000, 2000, 5000))
    blob = own + other[:99] + bytes(99)
    windows = own_windows([blob], [other])
    parts = {blob[n : n + 16] for n in range(len(blob) - 15)}
    assert len(windows) == sum(part not in other and len(set(part)) > 3 for part in parts)
    for name, data in {"a": filler, "b": filler[:7] + own[1000:1016], "c": other + bytes(5000), "d": own[5:20]}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "e").write_bytes(filler + own + filler)
    assert search(tmp_path, windows) == {"b": 1, "e": len(own) - 15}


@pytest.mark.check
@pytest.mark.sqlite
def test_no_window_of_it_is_left_in_any_file(lived_in: Registry) -> None:
    home, arrays = lived_in.home.path, lived_in.arrays
    needed = {link.digest for v in lived_in.versions() if v.name != "code" for link in lived_in.arrays_of(v)}
    own = [link.digest for link in lived_in.arrays_of(lived_in.resolve("code")) if link.digest not in needed]

    def stored(digests: Any) -> list[bytes]:
        chunks = [file.read_bytes() for digest in digests for file in array_folder(lived_in, digest).glob("c.*")]
        return [*chunks, *(arrays.read(digest).tobytes() for digest in digests)]

    left = [file for place in PLACES[1:] for file in (home / place).rglob("*.safetensors")]
    digest = lived_in.resolve("code").digest
    summaries = {file: file.name.startswith(digest) for file in sorted((home / "summaries").iterdir())}
    assert list(summaries.values()).count(True) == 3
    told = [[tensors_of(file, 65) for file, is_own in summaries.items() if is_own == mine] for mine in (True, False)]
    windows = own_windows([*stored(own), *map(tensors_of, left), *told[0]], [*stored(needed), *told[1]])
    before = search(home, windows)
    assert {path.split("/")[0] for path in before} == set(PLACES)
    assert len(own) > 30
    kept = files_with_marks(home)
    assert {"catalog.sqlite"} < {path for path in kept if path.startswith("catalog.sqlite")}, kept

    done = lived_in.opt_out("code", purge=True)
    assert done.remains == ()
    assert search(home, windows) == {}
    assert files_with_marks(home) == {}
    assert lived_in.verify().problems == ()
    assert [(path.parent.name, path.suffix) for path in map(Path, done.cleared)][-1] == ("home", ".backup")
    assert all(not work_dirs_in(home / place) for place in ("partial", "merged", "work"))
    assert not (home / "cache").exists()
    assert {file.name.partition(".")[0] for file in (home / "summaries").iterdir()} == {
        version.digest for version in lived_in.versions()
    }
    print(f"{len(windows):,} windows of {len(own)} arrays and {len(left)} files, {sum(before.values()):,} found before")


def files_with_marks(home: Path) -> dict[str, list[str]]:
    """Return which files hold words that were said of the version."""
    found = {}
    for path in sorted(home.rglob("*")):
        if path.is_file() and (marks := [mark for mark in MARKS if mark.encode() in path.read_bytes()]):
            found[str(path.relative_to(home))] = marks
    return found


def test_catalog_keeps_name_number_digests_and_times(lived_in: Registry) -> None:
    version = lived_in.resolve("code")
    assert version.content is not None
    lived_in.opt_out("code", purge=True)
    with lived_in.catalog.engine.connect() as connection:
        rows = {
            table.name: [row._asdict() for row in connection.execute(table.select())]
            for table in Base.metadata.sorted_tables
        }
    (row,) = [row for row in rows["versions"] if row["id"] == version.id]
    assert row.pop("withdrawn_at") <= row.pop("purged_at")
    expert = next(one["id"] for one in rows["experts"] if one["name"] == "code")
    assert row == {
        "id": version.id,
        "expert_id": expert,
        "number": 1,
        "digest": version.digest,
        "content": None,
        "parameters": 0,
        "state": "purged",
        "created_at": version.created_at,
    }
    for table in ("version_arrays", "statistics", "tags", "aliases"):
        assert version.id not in [row["version_id"] for row in rows[table]]
    assert rows["evaluations"] == []
    mine = [json.loads(row["details"]) | {"action": row["action"]} for row in rows["events"] if "code" in str(row)]
    assert [sorted(one) for one in mine] == [
        ["action", "actor", "digest", "rows"],  # registered
        ["action", "actor", "alias", "before", "rows"],
        ["action", "actor", "members", "out", "rows"],  # composed
        ["action", "actor", "digest", "rows"],  # opted out
        ["action", "actor", "rows"],  # what was measured with it is forgotten
        ["action", "actor", "deleted", "digest", "rows", "shared"],  # purged
    ]
    for row in rows["compositions"]:
        assert set(json.loads(row["document"])) <= {"base", "format", "host", "members", "recipe"}
    assert version.content["weights"] not in str(rows)


def test_scores_against_another_version_of_the_same_content_stay(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    digest = filled.compose(["code", "german"], tmp_path / "moe").digest
    twin = filled.add_expert("twin", zoo.experts["math"]).version
    assert twin.digest == filled.resolve("math").digest
    document = {"experts": {"math": twin.digest}, "figures": {}, "data": {}}
    filled.catalog.record_evaluation(digest, "1" * 64, document)
    filled.opt_out("twin", purge=True)
    assert [one.composition for one in filled.catalog.evaluations(digest)] == [digest]
    filled.opt_out("math")
    filled.opt_out("math@1", purge=True)
    assert filled.catalog.evaluations(digest) == []
    assert filled.verify().problems == ()


@pytest.mark.sqlite
def test_reader_elsewhere_is_told_of_and_the_repeat_erases(lived_in: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.1)
    home = lived_in.home.path
    reader = sqlite3.connect(home / "catalog.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM tags").fetchone() == (1,)
    done = lived_in.opt_out("code", purge=True)
    assert [line.split(" for")[0] for line in done.remains] == ["another process has used catalog.sqlite"]
    assert reader.execute("SELECT value FROM tags").fetchone() == ("a-secret-tag",)
    assert list(files_with_marks(home)) != []
    reader.execute("COMMIT")
    again = lived_in.opt_out("code", purge=True)
    assert (again.remains, again.deleted) == ((), ())
    assert files_with_marks(home) == {}
    reader.close()


def test_composition_that_an_opt_out_overtakes_puts_nothing_into_the_cache(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []

    def overtaken(*arguments: Any, **options: Any) -> Any:
        taken = take_statistics(*arguments, **options)
        if not told:
            with Registry(filled.home.path) as other:
                told.append(other.opt_out("code", purge=True).remains)
        return taken

    monkeypatch.setattr(passes, "take_statistics", overtaken)
    with pytest.raises(ConflictError, match="code@1 was opted out"):
        filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge", refine=1))
    ((line,),) = told
    assert line.startswith(f"another process uses a copy of it in {filled.home.work}/")
    assert not (tmp_path / "moe").exists()
    assert not filled.home.cache.exists()
    assert list(filled.home.work.iterdir()) == []


def test_pass_that_an_opt_out_overtakes_is_written_down_no_more(
    filled: Registry, bare: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.statistics.forward_pass.SAVE_SECONDS", 0.0)
    seen = []

    @contextmanager
    def overtaking(label: str, total: int, unit: str) -> Iterator[Advance]:
        def advance(amount: int) -> None:
            if unit == "token":
                seen.append(len(list(filled.home.partial.glob("*/*.safetensors"))))
            if len(seen) == 4:
                with Registry(filled.home.path) as other:
                    other.opt_out("code", purge=True)

        yield advance

    filled.progress = overtaking
    done = filled.add_expert("code", bare, data=[zoo.train["code"]], settings=SETTINGS)
    assert done.version.ref == "code@2"  # whoever registers it again, has it again
    assert (max(seen[:4]), max(seen[4:])) == (1, 0)
    assert list(filled.home.partial.iterdir()) == []


def test_other_passes_go_on_after_a_purge(filled: Registry) -> None:
    digest = filled.resolve("code").digest
    for key, holds in (("theirs", ["f" * 64]), ("mine", [digest])):
        with resumable(filled.home.partial, key, holds) as file:
            assert file is not None
            shutil.copytree(file.parent, filled.home.path / key)
        (filled.home.path / key / "state.safetensors").write_bytes(b"state")
        (filled.home.path / key).rename(filled.home.partial / key)
    with temporary(filled.home.merged, prefix="merged-") as busy, temporary(filled.home.work, [digest]) as mine:
        done = filled.opt_out("code", purge=True)
        assert done.remains == (f"another process uses a copy of it in {mine} until it ends",)
        assert busy.exists()
        assert filled.gc(dry_run=True).passes == 1
        assert (filled.gc().merged, busy.exists(), mine.exists()) == (0, True, True)
    assert done.cleared == (str(filled.home.partial / "mine"),)
    assert not list(filled.home.partial.iterdir())


def test_pass_is_resumed_by_one_process_at_a_time(tmp_path: Path) -> None:
    with resumable(tmp_path, "key", []) as first:
        assert first is not None
        first.write_bytes(b"state")
        with resumable(tmp_path, "key", []) as second:
            assert second is None
        assert first.exists()
    assert list(tmp_path.iterdir()) == []
    with resumable(None, "key", []) as nowhere:
        assert nowhere is None


def test_files_of_an_earlier_catalog_of_the_home_are_named(filled: Registry, url: str) -> None:
    """The catalog was moved to PostgreSQL; the SQLite file that it came from still holds the rows."""
    earlier = filled.home.path / "catalog.sqlite"
    filled.close()
    copy(filled.home.database, url, filled.home.lock)
    earlier.touch()
    with Registry(filled.home.path, database=url) as registry:
        done = registry.opt_out("code", purge=True)
    assert done.remains == (f"{earlier} is of an earlier catalog of this home, and yours to delete",)
    assert done.beyond is not None
