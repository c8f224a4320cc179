"""Proves: what context routing adds is counted, shown by `--plan` and named in the card; what reads a folder reads it.

Routes, scores, reports, pages and refusals.
"""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from registry import Recipe, Registry, TestSettings, TrainSettings
from registry.composition.plan import Plan, RoutingCost
from registry.composition.route import route
from registry.errors import InvalidInputError
from registry.evaluation import text_windows
from registry.hosts.context import ContextWindows
from registry.hosts.remote_code import REMOTE_CODE
from registry.methods.moe.context import evidence_of, scores_of
from registry.report import page
from tests.conftest import Zoo, files_of
from tests.registry.composition.composed import PAIR, json_of, reg, tensors_of

CONTEXT, RIDGE = Recipe(router="context"), Recipe(router="ridge")
NAMES = ["code", "german", "math"]
SETTINGS = TestSettings(windows=4, seq_len=32, batch_size=3)


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(NAMES, tmp_path / "moe", CONTEXT)
    return tmp_path / "moe"


def test_route_says_once_that_layers_agree(filled: Registry, moe: Path) -> None:
    text = "def return print der wald ist return def"
    routed = route(moe, text)
    assert (routed.layers, routed.is_alike) == (2, True)
    assert all(weights == {token.experts[0]: 1.0} for token in routed.tokens for weights in token.weights)
    result = reg(filled, "route", moe, text, "--every-layer")
    assert result.stderr.count("all 2 layers with experts agree on the expert of each token") == 1
    assert "layer 0" not in result.stdout
    assert result.stdout == reg(filled, "route", moe, text).stdout


@pytest.mark.check
def test_scores_count_routing_by_layer_and_by_tokens_read(filled: Registry, zoo: Zoo, moe: Path) -> None:
    plan = filled.plan(NAMES, CONTEXT)
    data = {name: [zoo.test[name]] for name in NAMES}
    (row,) = filled.evaluate([moe], data, SETTINGS)
    assert (row.parameters, row.active_parameters) == (plan.parameters, plan.active_parameters)
    windows = text_windows(data, moe, SETTINGS)
    for number, name in enumerate(NAMES):
        scores = scores_of(plan, windows[name].ids, windows[name].keep, evidence_of(plan))  # (windows, 32, experts)
        own = scores.argmax(dim=-1) == number
        assert row.accuracy[name] == pytest.approx([own.double().mean().item()] * 2, abs=0.03)
        ends = [0, 1, 2, 4, 8, 16, 32]
        spans = {str(end): own[:, start:end].double().mean().item() for start, end in pairwise(ends)}
        assert row.accuracy_by_tokens[name].keys() == spans.keys()
        assert row.accuracy_by_tokens[name]["32"] == pytest.approx(spans["32"], abs=0.03)
        assert len(set(row.accuracy[name])) == 1  # all layers route alike
    (oracle,) = filled.evaluate([], data, SETTINGS, experts=NAMES, methods=["oracle-context"])
    assert (oracle.name, oracle.accuracy) == ("oracle-context", {})  # it takes the place of routing
    document = json.loads(reg(filled, "show", plan.digest, "--json").stdout)
    assert document["evaluations"][0]["figures"]["accuracy_by_tokens"] == row.accuracy_by_tokens
    assert "context_window" in reg(filled, "show", plan.digest).stdout
    report = filled.report(moe)
    assert report.routing is not None
    assert (report.routing.measured, report.routing.layers) == (True, (0, 1))


@pytest.mark.check
def test_report_predicts_and_nothing_is_trained(filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path) -> None:
    report, preview = filled.report(moe), filled.preview(NAMES, CONTEXT)
    assert report.routing is not None
    assert list(report.routing.accuracy.values()) == [member.accuracy for member in preview.members]
    assert preview.notes[0] in report.notes
    text = page(report)
    assert "cannot tell apart by their token counts" in text
    before = _files(tmp_path)
    with pytest.raises(InvalidInputError, match="nothing to train: router method 'context'") as caught:
        filled.train_router(moe, tmp_path / "out", [str(zoo.train["code"])], TrainSettings(steps=2))
    assert "--router ridge" in str(caught.value.hint)
    assert _files(tmp_path) == before


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder but those in which SQLite keeps its locks."""
    return {path: data for path, data in files_of(folder).items() if not path.endswith(("-shm", "-wal"))}


def cost_of(registry: Registry, recipe: Recipe, experts: tuple[str, ...] = PAIR) -> RoutingCost | None:
    plan = registry.plan(experts, recipe)
    return plan.output.routing_cost(plan)


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("trunk", "vocabulary", "layers"), [("regmean", "mapped", 2), ("regmean", "shared", 1), ("base", "mapped", 2)]
)
def test_cost_is_the_difference_of_the_folders(
    filled: Registry, tmp_path: Path, trunk: str, vocabulary: str, layers: int
) -> None:
    sizes = {}
    for router in ("ridge", "context"):
        recipe = Recipe(router="context", trunk=trunk, vocabulary=vocabulary).replace(router=router)
        plan = filled.compose(PAIR, tmp_path / router, recipe)
        tensors = tensors_of(tmp_path / router).values()
        sizes[router] = [sum(each.numel() for each in tensors), sum(each.nbytes for each in tensors)]
    assert isinstance(plan, Plan)
    cost = plan.output.routing_cost(plan)
    assert cost is not None
    assert [cost.parameters, cost.bytes] == [sizes["context"][n] - sizes["ridge"][n] for n in range(2)]
    configs = [json_of(tmp_path / router, "config.json") for router in ("context", "ridge")]
    assert cost.layers == configs[0]["num_hidden_layers"] - configs[1]["num_hidden_layers"] == layers
    assert cost.channels == configs[0]["hidden_size"] - configs[1]["hidden_size"] > 0
    assert json_of(tmp_path / "context")["recipe"]["context_window"] == plan.recipe.context_window
    assert cost.window == (0.0 if any("its rope cannot" in note for note in plan.notes) else plan.recipe.context_window)


def test_plan_shows_it(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # whose window is that of the layer, if its rope has one
        windows = ContextWindows((1.0, 0.5))
        patch.setattr("registry.methods.moe.plan.context_windows", lambda *_: (windows, ()))
        cost = cost_of(filled, Recipe(router="context", context_window=24.0))
        assert cost is not None
        assert cost.window == 24.0
    cost = cost_of(filled, CONTEXT)
    assert cost is not None
    words = ("compose", "--experts", "code,math", "--plan")
    lines = [line for line in reg(filled, *words).stdout.splitlines() if "context" in line]
    assert lines[-1].split("  ")[0] == "context routing adds"
    assert f"one that adjusts the head, and {cost.channels} channels: {cost.parameters:,} parameters" in lines[-1]
    assert json.loads(reg(filled, *words, "--json").stdout)["context"] == asdict(cost)
    for how, start in (("mapped", "head maps, "), ("shared", "")):
        code = (*words, "--router", "context", "--remote-code", "--vocabulary", how)
        cost = cost_of(filled, CONTEXT.replace(host=REMOTE_CODE, vocabulary=how))
        assert cost is not None
        assert json.loads(reg(filled, *code, "--json").stdout)["context"] == asdict(cost)
        assert f"context routing adds  {start}{cost.parameters:,} parameters" in reg(filled, *code).stdout
    ridge = (*words, "--router", "ridge")
    assert "context routing adds" not in reg(filled, *ridge).stdout
    for other in (ridge, (*words, "--to", "ensemble")):
        assert json.loads(reg(filled, *other, "--json").stdout)["context"] is None
    assert cost_of(filled, CONTEXT, ("code",)) is cost_of(filled, Recipe(to="dense")) is None


def test_card_says_what_the_router_reveals(filled: Registry, tmp_path: Path) -> None:
    for name, recipe in (("moe", CONTEXT), ("plain", RIDGE)):
        filled.compose(PAIR, tmp_path / name, recipe)
    card = (tmp_path / "moe" / "README.md").read_text(encoding="utf-8")
    assert "- Smoothed log ratios of how often each expert's calibration used each token are in the embedding." in card
    assert "| context layer | layer 0, whose attention averages evidence over the " in card
    assert "context" not in (tmp_path / "plain" / "README.md").read_text(encoding="utf-8")
