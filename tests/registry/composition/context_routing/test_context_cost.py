"""Proves: what context routing adds is counted, shown by `--plan`, and named in the card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from cli.main import main
from registry import Recipe, Registry
from registry.composition.context_routing.context_cost import context_cost
from registry.composition.plan import Plan
from registry.hosts.context import ContextWindows
from registry.hosts.remote_code import REMOTE_CODE

CONTEXT, RIDGE = Recipe(router="context"), Recipe(router="ridge")


def run(registry: Registry, *words: str) -> str:
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("trunk", "vocabulary", "layers"), [("regmean", "mapped", 2), ("regmean", "shared", 1), ("base", "mapped", 2)]
)
def test_cost_is_the_difference_of_the_folders(
    filled: Registry, tmp_path: Path, trunk: str, vocabulary: str, layers: int
) -> None:
    sizes = {}
    for router in ("ridge", "context"):
        recipe = Recipe(router=router, trunk=trunk, vocabulary=vocabulary)
        plan = filled.compose(["code", "math"], tmp_path / router, recipe)
        tensors = load_file(tmp_path / router / "model.safetensors").values()
        sizes[router] = [sum(each.numel() for each in tensors), sum(each.nbytes for each in tensors)]
    assert isinstance(plan, Plan)
    cost = context_cost(plan)
    assert cost is not None
    assert [cost.parameters, cost.bytes] == [sizes["context"][n] - sizes["ridge"][n] for n in range(2)]
    configs = [json.loads((tmp_path / router / "config.json").read_text()) for router in ("context", "ridge")]
    assert cost.layers == configs[0]["num_hidden_layers"] - configs[1]["num_hidden_layers"] == layers
    assert cost.channels == configs[0]["hidden_size"] - configs[1]["hidden_size"] > 0
    document = json.loads((tmp_path / "context" / "composition.json").read_text())
    assert document["recipe"]["context_window"] == plan.recipe.context_window
    assert cost.window == (0.0 if any("its rope cannot" in note for note in plan.notes) else plan.recipe.context_window)


def test_window_is_that_of_the_layer(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = ContextWindows((1.0, 0.5))
    monkeypatch.setattr("registry.composition.context_routing.context_cost.context_windows", lambda *_: (windows, ()))
    plan = filled.plan(["code", "math"], Recipe(router="context", context_window=24.0))
    assert isinstance(plan, Plan)
    cost = context_cost(plan)
    assert cost is not None
    assert cost.window == 24.0


@pytest.mark.parametrize(
    ("experts", "recipe"),
    [(["code", "math"], RIDGE), (["code"], CONTEXT), (["code", "math"], Recipe(to="dense"))],
    ids=["ridge", "one member", "dense"],
)
def test_other_compositions_have_none(filled: Registry, experts: list[str], recipe: Recipe) -> None:
    plan = filled.plan(experts, recipe)
    assert isinstance(plan, Plan)
    assert context_cost(plan) is None


def test_plan_shows_it(filled: Registry) -> None:
    plan = filled.plan(["code", "math"], CONTEXT)
    assert isinstance(plan, Plan)
    cost = context_cost(plan)
    assert cost is not None
    words = ("compose", "--experts", "code,math", "--plan")
    lines = [line for line in run(filled, *words).splitlines() if "context" in line]
    assert lines[-1].split("  ")[0] == "context routing adds"
    assert f"one that adjusts the head, and {cost.channels} channels: {cost.parameters:,} parameters" in lines[-1]
    document = json.loads(run(filled, *words, "--json"))
    assert document["context"] == cost.document()
    ridge = (*words, "--router", "ridge")
    assert "context routing adds" not in run(filled, *ridge)
    for how, start in (("mapped", "head maps, "), ("shared", "")):
        code = (*words, "--router", "context", "--remote-code", "--vocabulary", how)
        plan = filled.plan(["code", "math"], replace(CONTEXT, host=REMOTE_CODE, vocabulary=how))
        assert isinstance(plan, Plan)
        cost = context_cost(plan)
        assert cost is not None
        assert json.loads(run(filled, *code, "--json"))["context"] == cost.document()
        assert f"context routing adds  {start}{cost.parameters:,} parameters" in run(filled, *code)
    assert json.loads(run(filled, *ridge, "--json"))["context"] is None
    assert json.loads(run(filled, *words, "--to", "ensemble", "--json"))["context"] is None


def test_card_explains_the_router_and_says_what_it_reveals(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", CONTEXT)
    card = (tmp_path / "moe" / "README.md").read_text(encoding="utf-8")
    for part in (
        "| router | context |",
        "| context layer | layer 0, whose attention averages evidence over the ",
        "| head maps | layer 3, whose experts bring the shared head near the expert's own; ",
        "| reserved channels | the last ",
        "naive Bayes over unigrams",
        "- Smoothed log ratios of how often each expert's calibration used each token are in the embedding.",
        "@misc{maron1961indexing,",
        "@misc{lewis1998naive,",
        "eprint = {2104.09864},",
    ):
        assert part in card
    filled.compose(["code", "math"], tmp_path / "whole", Recipe(router="context", context_window=0.0))
    assert "over the whole text so far; no member" in (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")
    filled.compose(["code", "math"], tmp_path / "plain", RIDGE)
    assert "context" not in (tmp_path / "plain" / "README.md").read_text(encoding="utf-8")
