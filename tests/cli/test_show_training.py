"""Proves: reg show and reg report have the losses of a training, and leave out a record that says nothing readable."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import ExpertTraining, Registry
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.report import page
from registry.report.charts import charts
from tests.conftest import Zoo

Run = Callable[..., Result]
TINY = ExpertTraining(tokens=6 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32")


@pytest.fixture
def run(filled: Registry) -> Run:
    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, arguments)])
        assert result.exit_code == 0, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.mark.check
def test_show_has_the_losses_of_a_trained_expert(filled: Registry, zoo: Zoo, run: Run) -> None:
    trained = filled.train_expert("fresh", "base", [zoo.train["code"]], TINY)
    losses = trained.losses
    found = json.loads(run("show", "fresh", "--json").stdout)["training"]
    assert found == {
        "steps": 6,
        "tokens": TINY.tokens,
        "before": losses.before,
        "after": losses.after,
        "every": 1,
        "loss": list(losses.steps),
    }
    lines = [line.split(maxsplit=1) for line in run("show", "fresh").stdout.splitlines()]
    assert ["trained", "6 steps, 384 tokens"] in lines
    assert ["loss", f"{losses.steps[0]:.4f} first, {losses.steps[-1]:.4f} last"] in lines
    assert f"held-out loss     {losses.before:.4f} before, {losses.after:.4f} after".split() in [
        " ".join(line).split() for line in lines
    ]
    assert json.loads(run("show", "code", "--json").stdout)["training"] is None
    assert "loss" not in run("show", "code").stdout
    filled.opt_out("fresh")
    assert json.loads(run("show", "fresh@1", "--json").stdout)["training"] == found
    filled.opt_out("fresh", purge=True)
    assert json.loads(run("show", "fresh@1", "--json").stdout)["training"] is None


@pytest.mark.check
def test_report_draws_the_losses_of_trained_members(filled: Registry, zoo: Zoo, run: Run, tmp_path: Path) -> None:
    losses = filled.train_expert("fresh", "base", [zoo.train["code"]], TINY).losses
    filled.compose(["fresh", "math"], tmp_path / "moe")
    figures = filled.report(tmp_path / "moe")
    (training,) = figures.trainings
    assert (training.name, training.steps, training.tokens) == ("fresh", 6, TINY.tokens)
    assert (training.at, training.loss) == ((1, 2, 3, 4, 5, 6), losses.steps)
    assert (training.before, training.after) == (losses.before, losses.after)
    chart = charts(figures)["losses"]
    assert [point["loss"] for point in chart["data"]["values"]] == list(losses.steps)
    assert [(end["step"], end["loss"]) for end in chart["layer"][2]["data"]["values"]] == [
        (0, losses.before),
        (6, losses.after),
    ]
    text = page(figures)
    assert 'data-chart="losses" role="img" aria-label=' in text
    assert f"{losses.after:.4f}" in text
    assert json.loads(run("report", tmp_path / "moe", "--json").stdout)["trainings"][0]["loss"] == list(losses.steps)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("content", ["{}", '{"format": 1}', '{"format": 1, "loss": "\\u001b[31m"}', "[]"])
def test_record_that_cannot_be_read_is_left_out_and_noted(
    filled: Registry, zoo: Zoo, run: Run, tmp_path: Path, content: str
) -> None:
    folder = shutil.copytree(zoo.experts["law"], tmp_path / "imported")
    (folder / EXPERT_TRAINING).write_text(content)
    if content == "[]":  # no JSON object: refused when it is registered
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), "add-expert", "imported", str(folder)])
        assert result.exit_code == 1
        assert "is not a JSON object" in result.output
        return
    run("add-expert", "imported", folder)
    shown = run("show", "imported")
    assert "the training of imported@1 is not shown: imported@1/expert_training.json" in shown.stderr
    assert "\x1b" not in shown.output
    assert "license" in shown.stdout
    assert json.loads(run("show", "imported", "--json").stdout)["training"] is None
    filled.compose(["imported", "math"], tmp_path / "moe")
    figures = filled.report(tmp_path / "moe")
    assert figures.trainings == ()
    assert any(note.startswith("the training of imported is not shown") for note in figures.notes)
    assert "losses" not in charts(figures)
    assert 'id="h-losses"' not in page(figures)
