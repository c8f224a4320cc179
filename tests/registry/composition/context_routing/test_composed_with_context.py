"""Proves: what reads a composed folder reads one with context routing: routes, scores, reports, pages, refusals."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from cli.main import main
from registry import Recipe, Registry, TestSettings, TrainSettings
from registry.composition.context_routing.member_evidence import choices_of, evidence_of
from registry.composition.trace import route
from registry.errors import InvalidInputError
from registry.evaluation import METHODS, test_windows
from registry.report import page
from tests.conftest import Zoo, files_of

CONTEXT = Recipe(router="context")
NAMES = ["code", "german", "math"]
SETTINGS = TestSettings(windows=4, seq_len=32, batch_size=3)


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(NAMES, tmp_path / "moe", CONTEXT)
    return tmp_path / "moe"


def run(registry: Registry, *words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def test_route_says_once_that_layers_agree(filled: Registry, moe: Path) -> None:
    text = "def return print der wald ist return def"
    routed = route(moe, text)
    assert (routed.layers, routed.is_alike) == (2, True)
    assert all(weights == {token.experts[0]: 1.0} for token in routed.tokens for weights in token.weights)
    result = run(filled, "route", moe, text, "--every-layer")
    assert result.stderr.count("all 2 layers with experts agree on the expert of each token") == 1
    assert "layer 0" not in result.stdout
    assert result.stdout == run(filled, "route", moe, text).stdout


@pytest.mark.check
def test_scores_count_routing_by_layer_and_by_tokens_read(filled: Registry, zoo: Zoo, moe: Path) -> None:
    plan = filled.plan(NAMES, CONTEXT)
    data = {name: [zoo.test[name]] for name in NAMES}
    (row,) = filled.evaluate([moe], data, SETTINGS)
    assert (row.parameters, row.active_parameters) == (plan.parameters, plan.active_parameters)
    windows = test_windows(data, moe, SETTINGS)
    for number, name in enumerate(NAMES):
        own = choices_of(plan, windows[name], evidence_of(plan)) == number  # (windows, 32)
        assert row.accuracy[name] == pytest.approx([own.double().mean().item()] * 2, abs=0.03)
        ends = [0, 1, 2, 4, 8, 16, 32]
        spans = {str(end): own[:, start:end].double().mean().item() for start, end in pairwise(ends)}
        assert row.accuracy_by_tokens[name].keys() == spans.keys()
        assert row.accuracy_by_tokens[name]["32"] == pytest.approx(spans["32"], abs=0.03)
    document = json.loads(run(filled, "show", plan.digest, "--json").stdout)
    assert document["evaluations"][0]["figures"]["accuracy_by_tokens"] == row.accuracy_by_tokens
    assert "context_window" in run(filled, "show", plan.digest).stdout
    report = filled.report(moe)
    assert report.routing is not None
    assert (report.routing.measured, report.routing.layers, report.curves) == (True, (0, 1), ())


@pytest.mark.check
def test_report_predicts_from_counts_and_has_no_ridge_curves(filled: Registry, moe: Path) -> None:
    report, preview = filled.report(moe), filled.preview(NAMES, CONTEXT)
    assert report.curves == ()
    assert report.routing is not None
    assert list(report.routing.accuracy.values()) == [member.accuracy for member in preview.members]
    assert preview.notes[0] in report.notes
    text = page(report)
    assert "cannot tell apart by their token counts" in text
    assert "Ridge strength" not in text


def test_nothing_is_trained_or_written(filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path) -> None:
    before = _files(tmp_path)
    with pytest.raises(InvalidInputError, match="nothing to train: router method 'context'") as caught:
        filled.train_router(moe, tmp_path / "out", [str(zoo.train["code"])], TrainSettings(steps=2))
    assert "--router ridge" in str(caught.value.hint)
    assert _files(tmp_path) == before
    refused = run(filled, "lam-curve", "--experts", "code,math", "--router", "context", code=1).stderr
    assert "router method 'context' has no ridge strength" in refused
    assert _files(tmp_path) == before


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("name", [name for name in METHODS if "context" in name])
def test_every_row_with_context_is_scored(filled: Registry, zoo: Zoo, name: str) -> None:
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    (row,) = filled.evaluate([], data, SETTINGS, experts=["code", "math"], methods=[name])
    assert row.name == name
    alike = [] if METHODS[name].oracle else [1, 1]  # all layers route alike; an oracle takes the place of routing
    assert [len(set(layers)) for layers in row.accuracy.values()] == alike


def test_folder_is_reproduced(filled: Registry, moe: Path) -> None:
    assert filled.reproduce(moe).is_same


def test_accuracy_of_any_mixture_is_counted_by_tokens_read(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "ridge")
    (row,) = filled.evaluate([tmp_path / "ridge"], {"code": [zoo.test["code"]]}, SETTINGS)
    by_tokens = row.accuracy_by_tokens["code"]
    counts = [1, 1, 2, 4, 8, 16]  # tokens of a window of 32 in each span
    mean = sum(share * count for share, count in zip(by_tokens.values(), counts, strict=True)) / 32
    assert mean == pytest.approx(torch.tensor(row.accuracy["code"]).mean().item(), abs=1e-6)


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder but those in which SQLite keeps its locks."""
    return {path: data for path, data in files_of(folder).items() if not path.endswith(("-shm", "-wal"))}
