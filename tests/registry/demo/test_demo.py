"""Proves: the demo runs end to end, in small, and its folder is only ever its own."""

import importlib.util
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.composition.manifest import ComposedFolder
from registry.demo import DemoResult, run, run_demo
from registry.errors import OutputError, StorageError
from registry.training.weight_trainer import WeightTrainer
from tests.conftest import files_of
from tests.remarks import Remarks


@pytest.fixture
def demo(demo_result: DemoResult, tmp_path: Path) -> Path:
    return shutil.copytree(demo_result.folder, tmp_path / "demo")


def test_demo_shows_the_promises(demo_result: DemoResult, demo: Path) -> None:
    result = demo_result
    assert result.domains == ("code", "english", "math")
    rows = ["base base@1", "expert code", "expert english", "expert math", "average", "moe"]
    assert [row.name for row in result.rows] == rows
    assert len(result.orders) == 6
    assert len(set(result.orders.values())) == 1
    assert result.opted_out == result.never_registered
    assert result.opted_out != next(iter(result.orders.values()))
    assert sorted(path.name for path in demo.iterdir()) == ["checkpoints", "demo.json", "moe", "registry", "text"]
    with Registry(demo / "registry") as registry:
        assert [version.ref for version in registry.versions()] == ["base@1", "code@1", "english@1", "math@1"]
        (composition,) = registry.compositions()
        assert len(composition.members) > composition.document["recipe"]["top_k"]  # sparse is what it says


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


def test_demo_that_ended_is_shown_again_and_replaced_only_where_asked(demo: Path, demo_result: DemoResult) -> None:
    before, remarks = files_of(demo), Remarks()
    assert run_demo(demo, remarks) == replace(demo_result, folder=demo)
    (remark,) = remarks.sentences
    assert "--force makes it again" in remark
    assert files_of(demo) == before
    marker = demo / "demo.json"
    marker.write_text(marker.read_text().replace('"withdrawn": "math"', '"withdrawn": "code"'))
    with run._prepared(demo, force=False) as file:
        assert run._finished(file, demo) is None  # figures that somebody changed are not shown
    with run._prepared(demo, force=True):
        pass
    assert [path.name for path in demo.iterdir()] == ["demo.json"]


@pytest.mark.trust
def test_interrupted_demo_goes_on_with_the_models_that_were_trained(
    demo: Path, demo_result: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo used to be made again from the start, or to ask for --force."""
    (demo / "demo.json").write_text(json.dumps({"made by": "reg demo"}))
    trained = files_of(demo / "checkpoints")
    (demo / "scratch" / "never").mkdir(parents=True)
    (demo / "scratch" / "never" / "left").write_text("by an interruption")
    shutil.rmtree(demo / "moe")
    monkeypatch.setattr("registry.demo.run.TOKENS", 512)
    monkeypatch.setattr("registry.demo.domains.DOMAIN_CHARACTERS", 60_000)
    monkeypatch.setattr("registry.demo.domains._TEST_SHARE", 4)
    again = run_demo(demo)
    assert files_of(demo / "checkpoints") == trained
    assert (again.orders, again.opted_out) == (demo_result.orders, demo_result.opted_out)
    assert run_demo(demo) == again


def test_a_resumed_training_says_at_which_step(
    demo: Path, demo_result: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trainer: WeightTrainer, step: int) -> float:
        if step == 1:  # after step 0
            raise KeyboardInterrupt
        return gradient(trainer, step)

    gradient = WeightTrainer.gradient

    remarks, places = Remarks(), (demo / "checkpoints", demo / "scratch")
    shutil.rmtree(demo / "checkpoints" / "math")
    files = {domain: demo / "text" / f"{domain}.train.jsonl.gz" for domain in demo_result.domains}
    monkeypatch.setattr("registry.training.loop.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("registry.demo.run.EXPERT_STEPS", 2)
    with monkeypatch.context() as patch:
        patch.setattr(WeightTrainer, "gradient", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run._train(*places, files, remarks)
    assert "goes on" not in remarks.text
    run._train(*places, files, remarks)
    assert "  math: an interrupted training goes on: 1 of 2 steps were done before" in remarks.sentences
    assert "weights, 2 steps" not in remarks.text  # other remarks stay unsaid


def test_closing_lines_have_the_figures_of_the_rows(demo_result: DemoResult, demo: Path) -> None:
    lines = CliRunner().invoke(main, ["demo", "--out", str(demo)]).stdout.splitlines()
    average = {row.name: row.average for row in demo_result.rows}
    moe, plain, base = average["moe"], average["average"], average["base base@1"]
    whole = ComposedFolder.read(demo / "moe").digest
    with Registry(demo / "registry") as registry:
        assert registry.plan(["code", "english", "math"]).digest == whole
        pair = registry.plan(["code", "english"]).digest
    assert demo_result.compositions == {"code,english,math": whole, "code,english": pair}
    proof = [
        "Bit for bit, every file compared:",
        f"  all 6 orders of registering gave one folder, composition {whole[:12]};",
        f"  opting math out gave the folder of a registry that never held it, composition {pair[:12]}.",
    ]
    closing = lines.index("next:")
    reached = f"averaged weights reach {plain:.0f} %, the base model {base:.0f} %."
    assert lines[closing - 5 : closing] == [f"The mixture reaches {moe:.0f} % of its experts; {reached}", *proof, ""]
    commands = [shlex.split(line) for line in lines[closing + 1 :]]
    assert commands[0] == ["export", f"REG_HOME={demo / 'registry'}"]
    assert len(commands) == 3
    for words in commands[1:]:
        result = CliRunner(env={"REG_HOME": str(demo / "registry")}).invoke(main, words[1:])
        assert result.exit_code == 0, result.output


def test_two_demos_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    with run._prepared(tmp_path / "demo", force=False):
        for force in (False, True):
            with pytest.raises(OutputError, match="another demo is running in") as caught:
                run_demo(tmp_path / "demo", force=force)
            assert caught.value.hint == "choose another --out, or wait until it has ended"
    with run._prepared(tmp_path / "demo", force=False):  # nothing was made there
        assert [path.name for path in (tmp_path / "demo").iterdir()] == ["demo.json"]


def test_files_of_a_user_in_an_earlier_demo_stay(demo: Path) -> None:
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


def test_make_demo_goes_on_where_it_was_interrupted() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    assert "/reg demo\n" in makefile  # without --force, which would begin again
