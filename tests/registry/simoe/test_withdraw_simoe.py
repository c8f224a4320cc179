"""Proves: a SIMoE's folder is pushed as it is, and an expert that was opted out stops what was made with it.

That is its composition, its reproduction and its push, as for any other expert; the receipt lists where it is still.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import ModelCard, snapshot_download

from cli.main import main
from registry import Registry, SimoeRecipe
from registry.composition.cards.pushed import without_additions
from registry.errors import ConflictError, IncompatibleError
from tests.conftest import files_of
from tests.registry.simoe.conftest import NAMES
from tests.writable_hub import WritableHub, writable_hub

TWO = NAMES[:2]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


def run(registry: Registry, *words: object) -> Result:
    return CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])


def test_pushed_folder_is_the_composed_one(simoe: Registry, hub: WritableHub, tmp_path: Path) -> None:
    plan = simoe.compose(TWO, tmp_path / "two", SimoeRecipe())
    pushed = simoe.push(tmp_path / "two", "org/two")
    sent, made = hub.files("org/two"), files_of(tmp_path / "two")
    assert sent.keys() == made.keys()
    assert {name for name in made if sent[name] != made[name]} == {"README.md"}
    assert without_additions(sent["README.md"]) == made["README.md"]
    card = ModelCard(sent["README.md"].decode())
    card.validate()
    assert "license: mit" in sent["README.md"].decode()
    back = Path(snapshot_download("org/two", local_dir=tmp_path / "back"))
    assert simoe.reproduce(back).is_same
    again = simoe.push(back, "org/two")
    assert (again.added, again.commit) == (False, pushed.commit)
    assert hub.messages == [
        (f"Composition {plan.digest[:12]} of mix-1, mix-2", f"Pushed by expert-registry.\n\ncomposition {plan.digest}")
    ]


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("purge", [False, True])
def test_expert_that_was_opted_out_is_refused_wherever_it_is_asked_for(
    simoe: Registry, hub: WritableHub, tmp_path: Path, purge: bool
) -> None:
    folders = {"one": NAMES[2:], "two": TWO, "all": NAMES}
    made = {name: simoe.compose(members, tmp_path / name, SimoeRecipe()) for name, members in folders.items()}
    simoe.push(tmp_path / "two", "org/two")
    before = files_of(tmp_path / "one")
    simoe.opt_out("mix-1", purge=purge, receipt=tmp_path / "receipt.json")

    receipt = json.loads((tmp_path / "receipt.json").read_bytes())
    assert receipt["not_erased"]["trained_together"] == ["mix-2@1", "mix-3@1"]
    assert [push["repo"] for push in receipt["not_erased"]["pushed"]] == ["org/two"]
    alone = simoe.plan(["mix-2"], SimoeRecipe()).digest
    remaining = simoe.plan(NAMES[1:], SimoeRecipe()).digest
    assert {one["digest"]: one["recomposed"]["digest"] for one in receipt["compositions"]} == {
        made["two"].digest: alone,
        made["all"].digest: remaining,
    }
    assert not simoe.verify_receipt(tmp_path / "receipt.json", [tmp_path / "one"]).problems
    assert simoe.verify_receipt(tmp_path / "receipt.json", [tmp_path / "two"]).problems

    for folder in ("two", "all"):
        words = [
            ("compose", "--experts", ",".join(folders[folder]), "--to", "simoe", "--out", tmp_path / "late"),
            ("reproduce", tmp_path / folder),
            ("push", tmp_path / folder, "org/late"),
        ]
        for command in words:
            told = run(simoe, *command)
            assert told.exit_code == 1, told.output
            assert "was opted out" in told.stderr
            assert "  next: " in told.stderr
    assert not (tmp_path / "late").exists()
    assert "org/late" not in hub.repositories

    assert simoe.verify().problems == ()  # the weights that the experts share are there still
    assert simoe.reproduce(tmp_path / "one").is_same
    simoe.compose(NAMES[2:], tmp_path / "again", SimoeRecipe())
    assert files_of(tmp_path / "again") == before


def test_base_model_that_was_opted_out_stops_all_of_them(simoe: Registry, hub: WritableHub, tmp_path: Path) -> None:
    simoe.compose(TWO, tmp_path / "two", SimoeRecipe())
    simoe.opt_out("base", purge=True, receipt=tmp_path / "receipt.json")
    with pytest.raises(ConflictError, match="opted out"):
        simoe.reproduce(tmp_path / "two")
    with pytest.raises(ConflictError, match="opted out"):
        simoe.push(tmp_path / "two", "org/two")
    with pytest.raises(IncompatibleError, match="none is registered here"):
        simoe.plan(TWO, SimoeRecipe())
    (composition,) = json.loads((tmp_path / "receipt.json").read_bytes())["compositions"]
    assert composition["recomposed"] is None
    assert not simoe.verify_receipt(tmp_path / "receipt.json").problems
    assert simoe.verify().problems == ()
