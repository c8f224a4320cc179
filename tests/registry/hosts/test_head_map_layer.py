"""Proves, for every host with a context layer: the last layer adds ρ M_e n to the stream of an expert's tokens.

Compared are two compositions, one with the shared head alone: its stream before the last norm gives what the other's
last norm should see. M_e comes from `HeadMaps`; where a norm comes before the MLP, ρ comes back with a ripple, which
the test computes from the closed form of `registry.hosts.head_map`, so that the tolerance is that of float32 weights.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.composition.tensor_source import StoredSource
from registry.hosts.context import CONTEXT_LAYERS
from registry.hosts.tensors import HeadMap
from registry.runtime.gates import force_expert
from tests.conftest import Shared
from tests.registry.hosts.test_context_layer import CARRIED
from tests.registry.hosts.test_hosts import IDS, Case, Variant, load, shared_variant, variant_of

EXPERTS = ["code", "math"]
EXACT = 2e-3
"""Largest difference over the largest value, of what maps add: weights of 32 bits, and the curve of the second norm."""

RIPPLE = {"silu": 0.17, "gelu_pytorch_tanh": 0.42, "gelu": 0.42, "gelu_new": 0.42}


@pytest.fixture(scope="module", params=CARRIED)
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Shared
) -> Iterator[Variant]:
    with shared_variant(request.param, tmp_path_factory.mktemp("variant"), shared) as made:
        yield made


def folders(variant: Variant, folder: Path, **settings: Any) -> tuple[Plan, Any, Any]:
    """Compose with the shared head and with maps; return the second plan and both models, to compute in float64."""
    recipe = {"trunk": "mean", "router": "context", "context_window": 16.0} | settings
    variant.registry.compose(EXPERTS, folder / "shared", variant.recipe(vocabulary="shared", **recipe))
    plan = variant.registry.compose(EXPERTS, folder / "mapped", variant.recipe(**recipe))
    assert isinstance(plan, Plan)
    models = [load(folder / name, torch.float64, experts_implementation="eager") for name in ("shared", "mapped")]
    return plan, *models


def last_stream(model: Any, expert: int, hidden: int) -> Float[Tensor, "T H"]:
    """Return what the last norm sees of the stream, with every token sent to one expert."""
    seen: list[Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    with torch.no_grad(), force_expert(model, expert):
        model(input_ids=IDS)
    handle.remove()
    return seen[0][..., :hidden].reshape(-1, hidden)


def ripple(plan: Plan, stream: Float[Tensor, "T H"], steady: float) -> Float[Tensor, "T"]:
    """Return by what the sum of bumps differs from 1, for ρ of each token."""
    tensor = next(one.made for one in plan.tensors if isinstance(one.made, HeadMap))
    if plan.host.context is not None and plan.host.context.norm_after:
        return torch.ones(len(stream), dtype=torch.float64)
    act: Any = torch.nn.functional.silu
    if plan.translation.architecture.hidden_act.startswith("gelu"):
        approximate = "none" if plan.translation.architecture.hidden_act == "gelu" else "tanh"
        act = lambda z: torch.nn.functional.gelu(z, approximate=approximate)  # noqa: E731
    size = stream.square().mean(dim=1).sqrt()
    multiplier = float(plan.translation.architecture.options.get("residual_multiplier", 1.0))
    bumps = [factor * multiplier * act(gate * steady / size) for gate, factor in tensor.levels]
    return torch.stack(bumps).sum(dim=0) * steady / size


@pytest.mark.check(after=1)
@pytest.mark.trust(after=4)
def test_the_last_norm_sees_the_mapped_stream(variant: Variant, tmp_path: Path) -> None:
    plan, shared, mapped = folders(variant, tmp_path)
    source, hidden = StoredSource(plan), plan.lead.architecture.hidden_size
    rank = next(one.made.rank for one in plan.tensors if isinstance(one.made, HeadMap))
    steady = float(steady_size(mapped, plan))
    for expert in range(2):
        before, after = (last_stream(model, expert, hidden) for model in (shared, mapped))
        left, right = source.context.head_maps.factors(expert, rank)
        expected = (before @ right.T @ left.T) * ripple(plan, before, steady)[:, None]
        assert float(expected.abs().max()) > 1e-3 * float(before.abs().max())  # the test can fail
        found = after - before
        assert float((found - expected).abs().max()) < EXACT * float(expected.abs().max())


def steady_size(model: Any, plan: Plan) -> float:
    """Return ρ̄: the size of the embedding's mean row in the stream."""
    hidden = plan.lead.architecture.hidden_size
    rows = model.model.embed_tokens.weight[:, :hidden]
    multiplier = float(plan.translation.architecture.options.get("embedding_multiplier", 1.0))
    return multiplier * float(rows.detach().double().square().mean().sqrt())


@pytest.mark.check(after=2)
def test_ripples_are_small(variant: Variant, tmp_path: Path) -> None:
    plan = variant.registry.plan(EXPERTS, variant.recipe(trunk="mean", router="context"))
    assert isinstance(plan, Plan)
    most = RIPPLE[plan.translation.architecture.hidden_act]
    for size in (1.5, 3.0, 10.0, 100.0, 1000.0, 10_000.0):
        stream = torch.full((1, plan.lead.architecture.hidden_size), size, dtype=torch.float64)
        assert abs(float(ripple(plan, stream, 1.0)) - 1) < most


@pytest.mark.check(after=6)
@pytest.mark.trust(after=13)
def test_config_names_both_layers(variant: Variant, tmp_path: Path) -> None:
    variant.registry.compose(EXPERTS, tmp_path / "moe", variant.recipe(trunk="mean", router="context"))
    config = json.loads((tmp_path / "moe" / "config.json").read_text())
    layers = config["num_hidden_layers"]
    assert config[CONTEXT_LAYERS] == [0, layers - 1]
    for key in ("layer_types", "mlp_layer_types"):
        assert len(config.get(key) or [0] * layers) == layers


@pytest.mark.check
def test_narrow_mlps_share_the_head(tmp_path: Path, tokenizer: Any) -> None:
    narrow = Case("llama", "mixtral", {"intermediate_size": 6})
    with variant_of(narrow, tmp_path, tokenizer) as variant:
        plans = [
            variant.registry.plan(EXPERTS, variant.recipe(router="context", vocabulary=how))
            for how in ("mapped", "shared")
        ]
    assert [note for note in plans[0].notes if "head" in note] == [
        "its MLPs are too narrow for head maps, or their activation is of another kind: the head is shared"
    ]
    assert len(plans[0].tensors) == len(plans[1].tensors)


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "olmo2", "granite"])
def test_16_bits_hold_them(name: str, dtype: str, tmp_path: Path, shared: Shared) -> None:
    """No weight or value is infinite, and logits are rounded hardly more than those of the shared head.

    Where a norm follows the MLP, what it reads is small, and float16 has few digits there.
    """
    worst = {}
    with shared_variant(name, tmp_path, shared) as variant:
        for how in ("shared", "mapped"):
            for written in (dtype, "float32"):
                recipe = variant.recipe(trunk="mean", router="context", vocabulary=how, dtype=written)
                variant.registry.compose(EXPERTS, tmp_path / how / written, recipe)
            half, exact = (load(tmp_path / how / written, getattr(torch, written)) for written in (dtype, "float32"))
            assert all(bool(torch.isfinite(weight).all()) for weight in half.parameters())
            pairs = [(forced(half, expert).float(), forced(exact, expert)) for expert in range(2)]
            worst[how] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    more = 0.08 if (name, dtype) == ("olmo2", "float16") else 0.02
    assert worst["mapped"] < 1.5 * worst["shared"] + more, worst


def forced(model: Any, expert: int) -> Tensor:
    with torch.no_grad(), force_expert(model, expert):
        logits: Tensor = model(input_ids=IDS).logits
    return logits


def test_maps_bring_logits_near_those_of_the_own_head(tmp_path: Path, filled: Registry) -> None:
    """On the streams of the shared model, by the mean square of what differs, less what all logits have in common."""
    for how in ("shared", "mapped"):
        filled.compose(EXPERTS, tmp_path / how, Recipe(router="context", trunk="mean", vocabulary=how))
    models = [load(tmp_path / how, torch.float32) for how in ("shared", "mapped")]
    member = filled.member(filled.resolve("code"))
    own = torch.cat([torch.from_numpy(block) for block in member.open_weight("lm_head.weight").blocks()]).float()
    norm = torch.cat([torch.from_numpy(block) for block in member.open_weight("model.norm.weight").blocks()]).float()
    hidden, share = len(norm), member.token_counts.double() / member.token_counts.sum()
    stream = last_stream(models[0], 0, hidden)
    normed = stream / (stream.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
    target = (normed * norm) @ own.T
    errors = []
    for model in models:
        difference = forced(model, 0).flatten(0, 1) - target
        centred = difference.double() - (difference.double() @ share)[:, None]
        errors.append(math.sqrt(float((centred.square() @ share).mean())))
    assert errors[1] < 0.8 * errors[0]
