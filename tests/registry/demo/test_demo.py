"""Proves: the demo runs end to end, in small, and its folder is only ever its own."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.demo import DemoResult, run, run_demo
from registry.errors import OutputError, StorageError
from tests.conftest import files_of


def test_demo_shows_the_promises(demo_result: DemoResult) -> None:
    result = demo_result
    assert result.domains == ("code", "english", "math")
    assert [row.name for row in result.rows] == [
        "base base@1",
        "expert code",
        "expert english",
        "expert math",
        "average",
        "moe",
    ]
    assert len(result.orders) == 3
    assert len(set(result.orders.values())) == 1
    assert result.opted_out == result.never_registered
    assert result.opted_out != next(iter(result.orders.values()))
    kept = sorted(path.name for path in result.folder.iterdir())
    assert kept == ["checkpoints", "demo.json", "moe", "registry", "text"]


def test_models_of_the_demo_are_trained_as_a_users_experts_are(demo_result: DemoResult) -> None:
    of = {
        name: json.loads((demo_result.folder / "checkpoints" / name / EXPERT_TRAINING).read_text())
        for name in ("base", *demo_result.domains)
    }
    begun = {name: document["training"]["base"] for name, document in of.items()}
    assert begun["base"] != begun["code"] == begun["english"] == begun["math"]
    for document in of.values():
        assert (document["training"]["trunk"], document["training"]["steps"], len(document["loss"])) == ("free", 2, 2)
        assert document["held_out"]["after"] < document["held_out"]["before"]


def test_demo_asks_for_what_training_needs_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "accelerate" else found(name))
    with pytest.raises(StorageError, match="needs accelerate") as caught:
        run_demo(tmp_path / "demo")
    assert "expert-registry[train]" in str(caught.value.hint)
    assert not (tmp_path / "demo").exists()


def test_earlier_demo_is_replaced_only_where_asked(tmp_path: Path, demo_result: DemoResult) -> None:
    demo = shutil.copytree(demo_result.folder, tmp_path / "demo")
    before = files_of(demo)
    with pytest.raises(OutputError, match="holds an earlier demo") as caught:
        run_demo(demo)
    assert "--force" in str(caught.value.hint)
    assert files_of(demo) == before
    with run._prepared(demo, force=True):
        pass
    assert [path.name for path in demo.iterdir()] == ["demo.json"]


def test_two_demos_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    with run._prepared(tmp_path / "demo", force=False):
        for force in (False, True):
            with pytest.raises(OutputError, match="another demo is running in") as caught:
                run_demo(tmp_path / "demo", force=force)
            assert caught.value.hint == "choose another --out, or wait until it has ended"
    with run._prepared(tmp_path / "demo", force=False):  # nothing was made there
        assert [path.name for path in (tmp_path / "demo").iterdir()] == ["demo.json"]


def test_files_of_a_user_in_an_earlier_demo_stay(tmp_path: Path, demo_result: DemoResult) -> None:
    demo = shutil.copytree(demo_result.folder, tmp_path / "demo")
    mine = ["thesis.tex", "text/thesis.txt", "text/math.jsonl.gz", "checkpoints/mine/config.json", "moe2/config.json"]
    for name in mine:
        (demo / name).parent.mkdir(exist_ok=True)
        (demo / name).write_text("mine")
    with run._prepared(demo, force=True):
        pass
    assert files_of(demo).keys() == {*mine, "demo.json"}


@pytest.mark.parametrize("force", [False, True])
def test_folder_of_somebody_else_is_not_replaced(tmp_path: Path, force: bool) -> None:
    for name in ("thesis.tex", "registry"):  # a name as the demo has it makes it no demo
        (tmp_path / name).write_text("x")
    with pytest.raises(OutputError, match="was not made by the demo"):
        run_demo(tmp_path, force=force)
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(OutputError, match="is not a folder"):
        run_demo(tmp_path / "thesis.tex", force=force)


def test_make_demo_can_be_repeated() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    assert "/reg demo --force" in makefile
