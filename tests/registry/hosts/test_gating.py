"""Proves: with gating softmax-topk a folder that plain transformers loads computes DUME's equation 4, on every host.

And: recorded weights, a training of routers and the scores see the same weights; hosts that always renormalise refuse.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import MixtureTraining, Recipe, Registry, TestSettings, TrainSettings
from registry.calibration import Calibration
from registry.composition.route import route
from registry.errors import InvalidInputError, UnsupportedFamilyError
from registry.runtime.gates import force_expert, gates, record_routing
from registry.runtime.loading import has_our_code
from registry.training.router_trainer import RouterTrainer
from registry.training.training_windows import Windows, next_token_loss
from tests.conftest import Shared, Zoo
from tests.models import train_tokenizer
from tests.registry.hosts.test_hosts import CASES, IDS, Variant, load, mixture, run, shared_variant, variant_of
from tests.registry.runtime.test_gates import ALL, check_choice, check_training
from tests.transformers4 import Transformers4

EXPERTS = ("code", "law", "math")
HOSTS = {"qwen2": "qwen2_moe", "qwen3": "qwen3_moe", "qwen3 window by layer": "mellum", "olmo2": "flex_olmo"}
HOSTS |= {"llama": "routed_llama", "gpt_neox": "routed_gpt_neox", "qwen2 remote": "routed_qwen2"}
"""Case → the host that carries it; all remote code has one kind of MLP."""
SOFTMAX_TOPK: dict[str, Any] = {"gating": "softmax-topk", "router": "ridge", "temperature": 0.5}


@pytest.fixture(scope="module", params=HOSTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    case = CASES[request.param.removesuffix(" remote")]
    with variant_of(case, tmp_path_factory.mktemp("gating"), train_tokenizer(), EXPERTS) as made:
        yield request.param, made


def recipe_for(name: str, **settings: Any) -> Recipe:
    host = "remote-code" if HOSTS[name].startswith("routed_") else HOSTS[name]
    return Recipe(host=host, trunk="base", **{**SOFTMAX_TOPK, **settings})


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_folder_computes_equation_4(variant: tuple[str, Variant], tmp_path: Path, k: int) -> None:
    name, made = variant
    plan = made.registry.compose(EXPERTS, tmp_path / "moe", recipe_for(name, top_k=k))
    assert plan.model_type == HOSTS[name]
    assert plan.document["recipe"]["gating"] == "softmax-topk"
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["norm_topk_prob"] is False
    moe = load(tmp_path / "moe")
    found = run(moe)
    # The classes take softmax and sums in float32, the reference softmax in float64 and sums in another order.
    assert torch.allclose(found, run(mixture(made, plan, moe, k)), rtol=1e-4, atol=2e-4)
    with record_routing(moe) as seen:
        assert torch.equal(run(moe), found)
    for gate, routing in zip(gates(moe), seen, strict=True):
        assert not gate.renormalizes
        weights = check_choice(gate, routing)
        assert bool((weights.sum(dim=-1) < 0.999).any()) == (k < 3)
        assert torch.allclose(weights, routing.logits[0].softmax(-1).gather(-1, routing.chosen[0]), atol=1e-6)
    for expert in range(3):  # an oracle sends tokens with weight 1, as with any other gating
        with force_expert(moe, expert), record_routing(moe) as forced:
            run(moe)
        assert all(torch.equal(one.weights[0].amax(dim=1), torch.ones(IDS.numel())) for one in forced)
    for candidates in range(k, 4):
        check_training(moe, candidates)
    check_gradient(moe, k)
    assert has_our_code(tmp_path / "moe") == HOSTS[name].startswith("routed_")


def check_gradient(moe: Any, k: int) -> None:
    """Check the gradient that compares k experts, against autograd through the host's own forward pass."""
    windows = Windows(Calibration(IDS.int(), torch.full((2,), IDS.shape[1], dtype=torch.int32), ""), ALL, ALL, 0)
    trainer = RouterTrainer(moe, windows, TrainSettings(batch_size=2, whiten=False), candidates=k)
    moe.zero_grad()
    trainer.gradient(0)
    for gate in gates(moe):
        gate.weight.requires_grad_(True)
    next_token_loss(moe, *windows.take(ALL), "mean").backward()
    for gate, part in zip(gates(moe), trainer.parts, strict=True):
        assert part.grad is not None
        assert gate.weight.grad is not None
        assert bool(part.grad.any())
        assert torch.allclose(part.grad, gate.weight.grad, rtol=1e-3, atol=1e-6)
        gate.weight.grad = None
    moe.requires_grad_(False)


def test_transformers_4_agrees(variant: tuple[str, Variant], tmp_path: Path, transformers4: Transformers4) -> None:
    name, made = variant
    if not made.case.old or HOSTS[name].startswith("routed_"):
        pytest.skip("transformers 4 has no such class")
    made.registry.compose(EXPERTS, tmp_path / "moe", recipe_for(name, top_k=2))
    found = run(load(tmp_path / "moe"))
    assert torch.equal(transformers4.logits(tmp_path / "moe", IDS, "float32", tmp_path), found)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("case", ["llama", "granite", "cohere", "smollm3", "qwen2"])
def test_hosts_that_renormalise_refuse(tmp_path: Path, case: str, shared: Shared) -> None:
    recipe = Recipe(host="granitemoe" if case == "qwen2" else None, **SOFTMAX_TOPK)
    with shared_variant(case, tmp_path, shared) as made:
        with pytest.raises(UnsupportedFamilyError, match="makes the weights of a token's experts add up to 1") as error:
            made.registry.compose(["code", "math"], tmp_path / "moe", recipe)
        choose = "choose --host qwen2_moe, or" if case == "qwen2" else "add"
        assert error.value.hint == f"{choose} --remote-code, a modelling file in the folder"
        assert not (tmp_path / "moe").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "gating has no part in router method 'context'"),
        ({"to": "dense"}, "gating has no part in output 'dense'"),
    ],
)
def test_recipes_without_such_weights_refuse(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Recipe.of_fields({"gating": "softmax-topk", **values})


@pytest.mark.check
def test_scores_routing_and_training_of_a_registered_composition(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    recipe = Recipe(top_k=1, host="remote-code", **SOFTMAX_TOPK)
    filled.compose(["code", "law", "math"], tmp_path / "moe", recipe)
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    settings = TestSettings(windows=2, seq_len=32, batch_size=3)
    row, *active = filled.evaluate([tmp_path / "moe"], data, settings, active_experts="all")
    assert sum(row.overall_load.values()) < 0.999  # shares of the softmax over all three
    assert active[0].perplexity == row.perplexity
    filled.compose(["code", "law", "math"], tmp_path / "two", Recipe(top_k=2, host="remote-code", **SOFTMAX_TOPK))
    (two,) = filled.evaluate([tmp_path / "two"], data, settings)
    assert active[1].perplexity == two.perplexity  # another number of active experts is the same as composing so
    weights = [
        next(iter(layer.values())) for token in route(tmp_path / "moe", "def sum").tokens for layer in token.weights
    ]
    assert min(weights) > 0
    assert max(weights) < 1
    routers = TrainSettings(steps=2, batch_size=2, seq_len=32, device="cpu")
    filled.train_router(tmp_path / "moe", tmp_path / "routers", [str(zoo.train["law"])], routers)
    mlps = MixtureTraining(train="mlps", tokens=2 * 2 * 32, batch_size=2, seq_len=32, device="cpu", lr=0.01)
    filled.train(tmp_path / "moe", tmp_path / "trained", [str(zoo.train["law"])], mlps)  # weights below 1: a gradient
    filled.compose(["code", "math"], tmp_path / "plain", Recipe(router="ridge", top_k=1))
    with pytest.raises(InvalidInputError, match="with weight 1, so its routers would get no gradient"):
        filled.train(tmp_path / "plain", tmp_path / "no", [str(zoo.train["law"])], mlps)
    for folder in ("moe", "routers", "trained"):
        assert filled.reproduce(tmp_path / folder).is_same


def test_default_gating_writes_what_it_wrote_and_copies_of_one_model_refuse(filled: Registry) -> None:
    default, named = Recipe(router="ridge"), Recipe(router="ridge", gating="topk-softmax")
    assert filled.plan(["code"], default).digest == filled.plan(["code"], named).digest
    assert "gating" not in default.document(["code"])
    recipe = Recipe(router="random", trunk="base", gating="softmax-topk", host="remote-code")
    with pytest.raises(InvalidInputError, match="copies of one base model would not give what it gives"):
        filled.plan([], recipe, from_base=4)
