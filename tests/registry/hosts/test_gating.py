"""Proves: with gating softmax-topk a folder that plain transformers loads computes DUME's equation 4, on every host.

And: recorded weights, a training of routers and the scores see the same weights; hosts that always renormalise refuse.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from registry import MixtureTraining, Recipe, Registry, TestSettings, TrainSettings
from registry.calibration import Calibration
from registry.composition.recipe import make_recipe
from registry.composition.trace import route
from registry.errors import InvalidInputError, UnsupportedFamilyError
from registry.runtime.gates import choice, force_expert, gates, record_routing
from registry.runtime.loading import has_our_code
from registry.training.trainer import Trainer
from registry.training.training_windows import Windows
from tests.conftest import Zoo
from tests.models import train_tokenizer
from tests.registry.hosts.test_hosts import CASES, IDS, Variant, load, variant_of
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


def equation_4(x: Tensor, gate: Tensor, mlps: list[Any], k: int) -> Tensor:
    """Return y = Σ_{e ∈ top-k} p_e MLP_e(x), p = softmax(W x) over all experts (DUME eq. 4), token by token."""
    rows = []
    for token in x.reshape(-1, x.shape[-1]):
        logits = [float(row.double() @ token.double()) for row in gate]
        largest = max(logits)
        exponentials = [torch.tensor(logit - largest, dtype=torch.float64).exp().item() for logit in logits]
        p = [one / sum(exponentials) for one in exponentials]
        kept = sorted(range(len(p)), key=lambda e: -p[e])[:k]
        y = torch.zeros_like(token)
        for e in kept:
            y = y + p[e] * mlps[e](token[None])[0]
        rows.append(y)
    return torch.stack(rows).view(x.shape)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_folder_computes_equation_4(variant: tuple[str, Variant], tmp_path: Path, k: int) -> None:
    name, made = variant
    plan = made.registry.compose(EXPERTS, tmp_path / "moe", recipe_for(name, top_k=k))
    assert plan.model_type == HOSTS[name]
    assert plan.document["recipe"]["gating"] == "softmax-topk"
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["norm_topk_prob"] is False
    family, moe, reference = plan.lead.family, load(tmp_path / "moe"), load(made.dense["base"])
    rows = [weight for key, weight in moe.named_parameters() if key.endswith("mlp.gate.weight")]
    mlps = [list(family.mlps(load(made.dense[expert]))) for expert in EXPERTS]
    for layer, module in enumerate(family.mlps(reference)):
        own = [of_expert[layer] for of_expert in mlps]
        module.register_forward_hook(lambda _m, x, _y, at=layer, own=own: equation_4(x[0], rows[at], own, k))
    with torch.no_grad():
        found, expected = moe(input_ids=IDS).logits, reference(input_ids=IDS).logits
        # The classes take softmax and sums in float32, the reference softmax in float64 and sums in another order.
        assert torch.allclose(found, expected, rtol=1e-4, atol=2e-4)
        with record_routing(moe) as seen:
            assert torch.equal(moe(input_ids=IDS).logits, found)
        for gate, routing in zip(gates(moe), seen, strict=True):
            assert not gate.renormalizes
            weights, chosen = choice(gate, routing.logits[0])
            assert torch.equal(routing.chosen[0], chosen)
            assert torch.allclose(routing.weights[0], weights, atol=1e-6)
            sums = weights.sum(dim=-1)
            assert bool((sums < 0.999).any()) == (k < 3)
            assert torch.allclose(weights, routing.logits[0].softmax(-1).gather(-1, chosen), atol=1e-6)
        for expert in range(3):  # an oracle sends tokens with weight 1, as with any other gating
            with force_expert(moe, expert), record_routing(moe) as forced:
                moe(input_ids=IDS)
            assert all(torch.equal(one.weights[0].amax(dim=1), torch.ones(IDS.numel())) for one in forced)
    if HOSTS[name].startswith("routed_"):
        assert has_our_code(tmp_path / "moe")


def test_transformers_4_reads_the_same_weights(
    variant: tuple[str, Variant], tmp_path: Path, transformers4: Transformers4
) -> None:
    name, made = variant
    if not made.case.old or HOSTS[name].startswith("routed_"):
        pytest.skip("transformers 4 has no such class")
    made.registry.compose(EXPERTS, tmp_path / "moe", recipe_for(name, top_k=2))
    with torch.no_grad():
        found = load(tmp_path / "moe")(input_ids=IDS).logits
    assert torch.equal(transformers4.logits(tmp_path / "moe", IDS, "float32", tmp_path), found)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
def test_it_is_another_model_than_with_weights_that_add_up_to_1(variant: tuple[str, Variant], tmp_path: Path) -> None:
    name, made = variant
    for gating in ("softmax-topk", "topk-softmax"):
        for k in (1, 3):
            made.registry.compose(EXPERTS, tmp_path / f"{gating} {k}", recipe_for(name, gating=gating, top_k=k))
    with torch.no_grad():
        logits = {path.name: load(path)(input_ids=IDS).logits for path in tmp_path.iterdir() if path.is_dir()}
    differ = (logits["softmax-topk 1"] - logits["topk-softmax 1"]).abs().max()
    # A norm follows FlexOlmo's MLPs, in which a factor of all of them cancels but for its epsilon.
    assert differ < 1e-3 if HOSTS[name] == "flex_olmo" else differ > 1e-2
    # With every expert active there is nothing to renormalise.
    assert torch.allclose(logits["softmax-topk 3"], logits["topk-softmax 3"], rtol=1e-4, atol=2e-4)


@pytest.mark.check(after=5)
@pytest.mark.trust(after=11)
@pytest.mark.parametrize(("k", "candidates"), [(1, 2), (1, 3), (2, 2), (2, 3), (3, 3)])
def test_training_passes_the_weights_of_the_folder(
    variant: tuple[str, Variant], tmp_path: Path, k: int, candidates: int
) -> None:
    name, made = variant
    made.registry.compose(EXPERTS, tmp_path / "moe", recipe_for(name, top_k=k))
    moe = load(tmp_path / "moe")
    windows = Windows(
        Calibration(IDS.int(), torch.full((2,), 48, dtype=torch.int32), ""), torch.arange(2), torch.arange(2), 0
    )
    trainer = Trainer(moe, windows, TrainSettings(batch_size=2), candidates=candidates)
    with torch.no_grad():
        before = moe(input_ids=IDS).logits
    with trainer._trained():
        logits = moe(input_ids=IDS).logits
        assert torch.allclose(logits, before, atol=1e-4)  # an expert of weight 0 adds exact zeros, in another order
        logits.logsumexp(-1).sum().backward()
    assert all(bool(gate.weight.grad.abs().sum() > 0) for gate in gates(moe) if gate.weight.grad is not None)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("case", "host", "hint"),
    [
        ("llama", None, "add --remote-code, a modelling file in the folder"),
        ("granite", None, "add --remote-code, a modelling file in the folder"),
        ("cohere", None, "add --remote-code, a modelling file in the folder"),
        ("smollm3", None, "add --remote-code, a modelling file in the folder"),
        ("qwen2", "granitemoe", "choose --host qwen2_moe, or --remote-code, a modelling file in the folder"),
    ],
)
def test_hosts_that_renormalise_refuse(tmp_path: Path, case: str, host: str | None, hint: str) -> None:
    with variant_of(CASES[case], tmp_path, train_tokenizer()) as made:
        with pytest.raises(UnsupportedFamilyError, match="makes the weights of a token's experts add up to 1") as error:
            made.registry.compose(["code", "math"], tmp_path / "moe", Recipe(host=host, **SOFTMAX_TOPK))
        assert error.value.hint == hint
        assert not (tmp_path / "moe").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "gating has no part in router method 'context'"),
        ({"to": "dense"}, "gating has no part in output 'dense'"),
        ({"router": "ridge", "refine_mlp": True}, "a refit takes the weights of a token's experts to add up to 1"),
        ({"router": "ridge", "refine_trunk": True}, "a refit takes the weights of a token's experts to add up to 1"),
    ],
)
def test_recipes_without_such_weights_refuse(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_recipe({"gating": "softmax-topk", **values})


def test_copies_of_one_model_refuse(filled: Registry) -> None:
    recipe = Recipe(router="random", trunk="base", gating="softmax-topk", host="remote-code")
    with pytest.raises(InvalidInputError, match="copies of one base model would not give what it gives"):
        filled.plan([], recipe, from_base=4)


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


def test_default_gating_writes_what_it_wrote(filled: Registry) -> None:
    assert (
        filled.plan(["code"], Recipe(router="ridge")).digest
        == filled.plan(["code"], Recipe(router="ridge", gating="topk-softmax")).digest
    )
    assert "gating" not in Recipe(router="ridge").document(["code"])
