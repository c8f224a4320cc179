"""Proves: what another process does meanwhile is told as that, and leaves nothing half-written.

The other process is played by a second registry on the same home, which acts between two steps of the first: between
two tensors of a composition, between two arrays that are verified.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.errors import ConflictError, OutputError, StorageError
from registry.io.model_folder import check_output, fresh_folder
from registry.progress import Advance
from store.arrays import FolderArrays
from store.catalog import Catalog
from store.ownership import check_owner, claim
from tests.conftest import Zoo, array_folder, files_of, overwrite


@contextmanager
def disturbed(home: Path, label: str, step: int, act: Callable[[Registry], object]) -> Iterator[Registry]:
    """Open a registry; at a step of what has a label, another one, of another process as it were, does `act` once."""
    done: list[bool] = []

    @contextmanager
    def progress(current: str, total: int, unit: str) -> Iterator[Advance]:
        steps = count()

        def advance(amount: int) -> None:
            if current == label and next(steps) == step and not done:
                done.append(True)
                with Registry(home) as other:
                    act(other)

        yield advance

    with Registry(home, progress=progress) as registry:
        yield registry
    assert done, "the other process never had its turn"


def purge(registry: Registry) -> None:
    registry.opt_out("math", purge=True)


RECIPES: dict[str, Any] = {
    "default": Recipe(),
    "dense": Recipe(to="dense"),
    "ensemble": Recipe(to="ensemble"),
    "refined": Recipe(router="ridge", refine=1),
}


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(("recipe", "step"), [*((recipe, 3) for recipe in RECIPES), ("default", 0), ("refined", 12)])
def test_member_purged_while_it_is_composed(filled: Registry, tmp_path: Path, recipe: str, step: int) -> None:
    filled.compose(["code", "law"], tmp_path / "moe")
    before = files_of(tmp_path / "moe")
    with (
        disturbed(filled.home.path, "composing", step, purge) as registry,
        pytest.raises(ConflictError, match=r"math@1 was opted out (meanwhile, )?at 2"),
    ):
        registry.compose(["code", "law", "math"], tmp_path / "moe", RECIPES[recipe], force=True)
    assert files_of(tmp_path / "moe") == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert not list(filled.home.work.glob("*"))
    assert [made.members for made in filled.compositions()] == [("code@1", "law@1")]
    assert filled.verify().problems == ()


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(("recipe", "step"), [("refined", 0), ("refined", 12)])
def test_others_purged_while_one_is_composed(
    filled: Registry, zoo: Zoo, tmp_path: Path, recipe: str, step: int
) -> None:
    """Who is no member matters to nobody, and neither does garbage collected meanwhile."""
    filled.compose(["code", "law"], tmp_path / "expected", RECIPES[recipe])

    def act(registry: Registry) -> None:
        purge(registry)
        registry.add_expert("math", zoo.experts["math"])
        registry.gc()

    with disturbed(filled.home.path, "composing", step, act) as registry:
        registry.compose(["code", "law"], tmp_path / "found", RECIPES[recipe])
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")


@pytest.mark.parametrize("step", [0, 5])
def test_version_purged_while_it_is_exported(filled: Registry, tmp_path: Path, step: int) -> None:
    with (
        disturbed(filled.home.path, "writing", step, purge) as registry,
        pytest.raises(ConflictError, match="math@1 was opted out meanwhile, at 2"),
    ):
        registry.export("math", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


@pytest.mark.check(after=1)
@pytest.mark.parametrize("step", [0, 20])
def test_version_purged_while_all_is_verified(filled: Registry, step: int) -> None:
    with disturbed(filled.home.path, "verifying", step, purge) as registry:
        result = registry.verify()
    assert (result.problems, result.orphans) == ((), 0)


def test_damage_is_found_while_another_is_purged(filled: Registry) -> None:
    link = next(link for link in filled.arrays_of(filled.resolve("law")) if link.role == "mlp")
    overwrite(array_folder(filled, link.digest) / "c.0.0", b"")
    with disturbed(filled.home.path, "verifying", 0, purge) as registry:
        assert len(registry.verify().problems) == 1


def test_registering_compares_with_one_purged_meanwhile(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """That is no reason for a word, and none against registering."""
    told: list[str] = []
    gone: list[bool] = []

    @contextmanager
    def progress(label: str, total: int, unit: str) -> Iterator[Advance]:
        told.extend([] if unit else [label])
        if label == "comparing" and not gone:
            gone.append(True)
            with Registry(filled.home.path) as other:
                purge(other)
        yield lambda amount: None

    with Registry(filled.home.path, progress=progress) as registry:
        done = registry.add_expert("late", zoo.experts["biomed"])
    assert (done.added, gone, told) == (True, [True], [])
    assert "math@1" not in {other.ref for other in done.overlaps}


def test_resolved_version_purged_before_its_arrays_are_listed(filled: Registry) -> None:
    version = filled.resolve("math")
    purge(filled)
    with pytest.raises(ConflictError, match="math@1 was opted out meanwhile, at 2"):
        filled.member(version)
    assert [member.version.ref for member in filled.members([version, filled.resolve("law")])] == ["law@1"]


@pytest.mark.check
def test_folder_that_another_registry_is_composing_into(filled: Registry, tmp_path: Path) -> None:
    """The registry's own lock does not tell of it; the folder itself does."""
    elsewhere = shutil.copytree(filled.home.path, tmp_path / "elsewhere")
    refused = []

    def act(_registry: Registry) -> None:
        with Registry(elsewhere) as other, pytest.raises(OutputError) as caught:
            other.compose(["law"], tmp_path / "moe", force=True)
        refused.append(caught.value.message)

    with disturbed(filled.home.path, "composing", 3, act) as registry:
        registry.compose(["code", "math"], tmp_path / "moe", force=True)
    filled.compose(["code", "math"], tmp_path / "expected")
    assert refused == [f"{tmp_path / 'moe'} is being written by another process"]
    assert files_of(tmp_path / "moe") == files_of(tmp_path / "expected")
    with Registry(elsewhere) as other:
        other.compose(["law"], tmp_path / "moe", force=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_folder_that_fails_leaves_the_next_ones_alone(tmp_path: Path) -> None:
    """Who fails after its folder is in place deletes nothing of who writes there by then."""
    hidden = tmp_path / ".moe.partial"

    def fail() -> None:
        with fresh_folder(tmp_path / "moe", replace=True, nbytes=0):
            hidden.rename(tmp_path / "taken")
            hidden.mkdir()
            (hidden / "theirs").write_text("x")
            raise OSError("full")

    with pytest.raises(StorageError):
        fail()
    assert (hidden / "theirs").exists()
    with fresh_folder(tmp_path / "moe", replace=True, nbytes=0) as again:
        assert list(again.iterdir()) == []


def test_folder_that_vanishes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moe").mkdir()

    def vanished(path: Path) -> Iterator[Path]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "iterdir", vanished)
    check_output(tmp_path / "moe", replace=True)


def test_first_arrays_stored_while_they_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looked for the owner before there was one, and for arrays after, is not told that they are another's."""
    store = FolderArrays(tmp_path / "arrays")
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}", tmp_path / "lock")
    owner, asked = store.owner, []

    def late() -> str | None:
        asked.append(True)
        if len(asked) > 1:
            return owner()
        claim(catalog, FolderArrays(tmp_path / "arrays"))
        (store.root / "ab" / ("ab" + 62 * "0")).mkdir(parents=True)
        return None

    monkeypatch.setattr(store, "owner", late)
    check_owner(catalog, store)
    catalog.close()
