"""Proves: reg show and reg report have the losses of a training, and leave out a record that says nothing readable."""

import shutil
from pathlib import Path

import pytest

from registry import ExpertTraining, Registry
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.report import page
from registry.report.charts import charts
from tests.cli.conftest import Reg
from tests.conftest import Zoo

TINY = ExpertTraining(tokens=6 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32")


@pytest.mark.check
def test_show_and_report_have_the_losses_of_a_trained_expert(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    losses = filled.train_expert("fresh", "base", [zoo.train["code"]], TINY).losses
    found = reg.json("show", "fresh")["training"]
    assert found == {
        "steps": 6,
        "tokens": TINY.tokens,
        "before": losses.before,
        "after": losses.after,
        "every": 1,
        "loss": list(losses.steps),
    }
    lines = [" ".join(line.split()) for line in reg("show", "fresh").stdout.splitlines()]
    assert "trained 6 steps, 384 tokens" in lines
    assert f"loss {losses.steps[0]:.4f} first, {losses.steps[-1]:.4f} last" in lines
    assert f"held-out loss {losses.before:.4f} before, {losses.after:.4f} after" in lines
    assert reg.json("show", "code")["training"] is None
    assert "loss" not in reg("show", "code").stdout

    filled.compose(["fresh", "math"], tmp_path / "moe")
    figures = filled.report(tmp_path / "moe")
    (training,) = figures.trainings
    assert (training.name, training.steps, training.tokens) == ("fresh", 6, TINY.tokens)
    assert (training.at, training.loss) == ((1, 2, 3, 4, 5, 6), losses.steps)
    assert (training.before, training.after) == (losses.before, losses.after)
    chart = charts(figures)["losses"]
    assert [point["loss"] for point in chart["data"]["values"]] == list(losses.steps)
    ends = [(end["step"], end["loss"]) for end in chart["layer"][2]["data"]["values"]]
    assert ends == [(0, losses.before), (6, losses.after)]
    text = page(figures)
    assert 'data-chart="losses" role="img" aria-label=' in text
    assert f"{losses.after:.4f}" in text
    assert reg.json("report", tmp_path / "moe")["trainings"][0]["loss"] == list(losses.steps)

    filled.opt_out("fresh")
    assert reg.json("show", "fresh@1")["training"] == found
    filled.opt_out("fresh", purge=True)
    assert reg.json("show", "fresh@1")["training"] is None


@pytest.mark.check
def test_record_that_cannot_be_read_is_left_out_and_noted(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder = shutil.copytree(zoo.experts["law"], tmp_path / "imported")
    (folder / EXPERT_TRAINING).write_text("[]")  # no JSON object: refused when it is registered
    assert "is not a JSON object" in reg("add-expert", "imported", folder, code=1).output
    (folder / EXPERT_TRAINING).write_text('{"format": 1, "loss": "\\u001b[31m"}')
    reg("add-expert", "imported", folder)
    shown = reg("show", "imported")
    assert "the training of imported@1 is not shown: imported@1/expert_training.json" in shown.stderr
    assert "\x1b" not in shown.output
    assert "license" in shown.stdout
    assert reg.json("show", "imported")["training"] is None
    filled.compose(["imported", "math"], tmp_path / "moe")
    figures = filled.report(tmp_path / "moe")
    assert figures.trainings == ()
    assert any(note.startswith("the training of imported is not shown") for note in figures.notes)
    assert "losses" not in charts(figures)
    assert 'id="h-losses"' not in page(figures)
