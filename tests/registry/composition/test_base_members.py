"""Proves: a base model is a member where no statistics of it are needed, and is refused with the reason elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import EnsembleRecipe, Recipe, Registry
from registry.composition import read_recipe
from registry.errors import IncompatibleError
from registry.maths.router import ROUTERS
from registry.maths.trunk import TRUNKS
from registry.opt_out.receipt import read_receipt
from registry.ui.composer.choices import Choices
from tests.conftest import Zoo, files_of
from tests.models import logits

IDS = torch.arange(1, 25).reshape(2, 12)


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(trunk="mean", router="random"),
        Recipe(trunk="base", router="random"),
        Recipe(trunk="mean", router="random", balance="tokens", weights={"base": 2.0}),
        Recipe(to="dense", trunk="mean"),
        Recipe(to="dense", trunk="ties"),
        Recipe(to="dense", trunk="task-arithmetic"),
        EnsembleRecipe(),
        EnsembleRecipe(routing="task-vector", top_k=1),
    ],
    ids=["mean", "base", "weighted", "soup", "ties", "task-arithmetic", "posterior", "task-vector"],
)
def test_it_is_a_member_and_reproduced(filled: Registry, tmp_path: Path, recipe: Any) -> None:
    plan = filled.compose(["law", "base"], tmp_path / "one", recipe)
    assert plan.names == ["base", "law"]
    assert filled.compose(["base@1", "law"], tmp_path / "two", recipe).digest == plan.digest
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert filled.reproduce(tmp_path / "one").is_same
    assert filled.composition(plan.digest[:12]).members == ("base@1", "law@1")  # type: ignore[union-attr]
    card = (tmp_path / "one" / "README.md").read_text()
    assert card.count("$ reg add-base base CKPT") == card.count("$ reg add-expert law CKPT") == 1
    assert "$ reg add-expert base CKPT" not in card
    read = read_recipe(tmp_path / "one" / "composition.json").resolved(filled.catalog)
    assert read.experts == ("base@1", "law@1")
    assert filled.plan(read.experts, read.recipe, base=read.base).digest == plan.digest


def test_its_weights_are_what_was_registered(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own, law = (load_file(folder / "model.safetensors") for folder in (zoo.base, zoo.experts["law"]))
    filled.compose(["base", "law"], tmp_path / "moe", Recipe(trunk="mean", router="random"))
    filled.compose(["base", "law"], tmp_path / "soup", Recipe(to="dense", trunk="mean"))
    filled.compose(["base"], tmp_path / "alone", Recipe(trunk="mean", router="random"))
    mixed, soup = (load_file(tmp_path / name / "model.safetensors") for name in ("moe", "soup"))
    for layer in range(2):
        for number, one in enumerate((own, law)):
            for name, part in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
                written = mixed[f"model.layers.{layer}.block_sparse_moe.experts.{number}.{name}.weight"]
                assert torch.equal(written, one[f"model.layers.{layer}.mlp.{part}.weight"])
    assert own.keys() == soup.keys()
    assert all(torch.equal(soup[name], ((own[name].double() + law[name].double()) / 2).float()) for name in own)
    assert torch.equal(logits(tmp_path / "alone", IDS), logits(zoo.base, IDS))


def test_opting_it_out_recomposes_the_others(filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(trunk="mean", router="random", top_k=2)
    filled.compose(["base", "law", "code"], tmp_path / "moe", recipe)
    rest = filled.plan(["law", "code"], recipe)
    filled.opt_out("base", receipt=tmp_path / "receipt.json")
    receipt = read_receipt(tmp_path / "receipt.json")
    (affected,) = receipt.compositions
    assert affected.recomposed is not None
    assert affected.recomposed.digest == rest.digest
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []


@pytest.mark.check(after=6)
@pytest.mark.parametrize(
    ("recipe", "message", "hint"),
    [
        (Recipe(), "has no token counts, and router method 'context'", "or choose --router random --trunk mean"),
        (Recipe(router="ridge", trunk="mean"), "has no statistics of mlp_input", "or choose --router random"),
        (Recipe(router="random"), "and trunk method 'regmean' needs them", "or choose --trunk mean"),
        (Recipe(to="dense"), "and trunk method 'regmean' needs them", "or choose --trunk mean"),
        (Recipe(router="ridge", trunk="mean", refine=1), "has no calibration tokens", "--keep-calibration; or choose"),
        (Recipe(router="domain-embedding", trunk="base"), "has no calibration tokens", "--keep-calibration; or choose"),
        (Recipe(router="random", trunk="mean", refine_mlp=True), "has no calibration tokens", "no refinement"),
    ],
)
def test_it_is_refused_where_statistics_are_needed(filled: Registry, recipe: Recipe, message: str, hint: str) -> None:
    before = files_of(filled.home.path)
    with pytest.raises(IncompatibleError) as refused:
        filled.plan(["law", "base"], recipe)
    assert refused.value.message.startswith("base@1 is a base model, which ")
    assert message in refused.value.message
    assert "register its checkpoint as an expert too, with text: reg add-expert NAME" in str(refused.value.hint)
    assert hint in str(refused.value.hint)
    assert files_of(filled.home.path) == before


def test_figures_from_statistics_are_refused(filled: Registry, zoo: Zoo) -> None:
    with pytest.raises(IncompatibleError, match=r"base@1 is a base model, .* a preview needs them"):
        filled.preview(["base", "law"], Recipe(trunk="mean", router="random"))
    with pytest.raises(IncompatibleError, match=r"base@1 is a base model, .* comparison with documents needs them"):
        filled.likeness(["base", "law"], [zoo.train["law"]])
    with pytest.raises(IncompatibleError, match="base@1 is a base model"):
        filled.lam_curve(["base", "law"])


def test_the_form_offers_it_where_it_can_be(filled: Registry) -> None:
    for to, router, trunk in (("moe", r, t) for r in ROUTERS for t in TRUNKS):
        choices = Choices.of_query({"to": to, "router": router, "trunk": trunk})
        assert choices.with_base == (router in ("random", "anchored"))
    assert Choices.of_query({"to": "ensemble"}).with_base
    assert not Choices.of_query({"to": "dense"}).with_base
    assert Choices.of_query({"to": "dense", "trunk": "mean"}).with_base
    assert not Choices.of_query({"router": "nonsense"}).with_base
