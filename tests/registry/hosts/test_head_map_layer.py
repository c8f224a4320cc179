"""Proves, for every host with a context layer: the last layer adds ρ M_e n to the stream of an expert's tokens.

Compared are two compositions, one with the shared head alone: its stream before the last norm gives what the other's
last norm should see. M_e comes from `HeadMaps`; where a norm comes before the MLP, ρ comes back with a ripple, which
the test computes from the closed form of `registry.hosts.head_map`, so that the tolerance is that of float32 weights.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.hosts.context import CONTEXT_LAYERS
from registry.hosts.tensors import HeadMap
from registry.methods.moe.tensor_source import StoredSource
from registry.runtime.gates import force_expert
from tests.conftest import Shared
from tests.registry.hosts.test_context_layer import CARRIED, forced
from tests.registry.hosts.test_hosts import IDS, Case, Variant, load, run, shared_variant, variant_of

EXPERTS = ["code", "math"]
EXACT = 2e-3
"""Largest difference over the largest value, of what maps add: weights of 32 bits, and the curve of the second norm."""

RIPPLE = {"silu": 0.17, "gelu_pytorch_tanh": 0.42, "gelu": 0.42, "gelu_new": 0.42}


@pytest.fixture(params=CARRIED)
def variant(request: pytest.FixtureRequest, tmp_path: Path, shared: Shared) -> Iterator[Variant]:
    with shared_variant(request.param, tmp_path, shared) as made:
        yield made


def folders(variant: Variant, folder: Path, **settings: Any) -> tuple[Plan, Any, Any]:
    """Compose with the shared head and with maps; return the second plan and both models, to compute in float64."""
    recipe = {"trunk": "mean", "router": "context", "context_window": 16.0} | settings
    variant.registry.compose(EXPERTS, folder / "shared", variant.recipe(vocabulary="shared", **recipe))
    plan = variant.registry.compose(EXPERTS, folder / "mapped", variant.recipe(**recipe))
    assert isinstance(plan, Plan)
    models = [load(folder / name, torch.float64, experts_implementation="eager") for name in ("shared", "mapped")]
    return plan, *models


def last_stream(model: Any, expert: int | None = None, norm: str = "model.norm") -> Float[Tensor, "T H"]:
    """Return what the last norm gets, perhaps with every token sent to one expert."""
    seen: list[Tensor] = []
    handle = model.get_submodule(norm).register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    with nullcontext() if expert is None else force_expert(model, expert):
        run(model)
    handle.remove()
    return seen[0].flatten(0, 1)


def error(logits: Tensor, target: Tensor, share: Float[Tensor, "V"]) -> float:
    """Return the root of the mean square of what differs, less what all logits of a token have in common."""
    difference = (logits - target).flatten(0, -2).double()
    difference -= (difference @ share)[:, None]
    return math.sqrt(float((difference.square() @ share).mean()))


def check_16_bits(composed: Callable[[str, str], Path], dtype: str, more: float = 0.0) -> None:
    """Check that no weight or value is infinite, and logits are rounded hardly more than those of the shared head.

    Args:
        composed: returns the folder of a composition by its vocabulary and its dtype.
        dtype: the shorter one.
        more: what maps may add.
    """
    worst = {}
    for how in ("shared", "mapped"):
        half, exact = (load(composed(how, written), getattr(torch, written)) for written in (dtype, "float32"))
        assert all(bool(torch.isfinite(weight).all()) for weight in half.parameters())
        pairs = [(forced(half, expert).float(), forced(exact, expert)) for expert in range(2)]
        assert all(bool(torch.isfinite(logits).all()) for logits, _ in pairs)
        worst[how] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    assert worst["mapped"] < 1.5 * worst["shared"] + more, worst


def ripple(plan: Plan, stream: Float[Tensor, "T H"], steady: float) -> Float[Tensor, "T"]:
    """Return by what the sum of bumps differs from 1, for ρ of each token."""
    tensor = next(one.made for one in plan.tensors if isinstance(one.made, HeadMap))
    if plan.parts.host.context is not None and plan.parts.host.context.norm_after:
        return torch.ones(len(stream), dtype=torch.float64)
    act: Any = torch.nn.functional.silu
    if plan.parts.architecture.hidden_act.startswith("gelu"):
        approximate = "none" if plan.parts.architecture.hidden_act == "gelu" else "tanh"
        act = lambda z: torch.nn.functional.gelu(z, approximate=approximate)  # noqa: E731
    size = stream.square().mean(dim=1).sqrt()
    multiplier = float(plan.parts.architecture.options.get("residual_multiplier", 1.0))
    bumps = [factor * multiplier * act(gate * steady / size) for gate, factor in tensor.levels]
    return torch.stack(bumps).sum(dim=0) * steady / size


@pytest.mark.check(after=1)
@pytest.mark.trust(after=4)
def test_the_last_norm_sees_the_mapped_stream(variant: Variant, tmp_path: Path) -> None:
    plan, shared, mapped = folders(variant, tmp_path)
    source, hidden = StoredSource(plan), plan.lead.architecture.hidden_size
    rank = next(one.made.rank for one in plan.tensors if isinstance(one.made, HeadMap))
    # ρ̄, the size of the embedding's mean row in the stream
    multiplier = float(plan.parts.architecture.options.get("embedding_multiplier", 1.0))
    rows = mapped.model.embed_tokens.weight[:, :hidden].detach()
    steady = multiplier * float(rows.square().mean().sqrt())
    for expert in range(2):
        before, after = (last_stream(model, expert)[:, :hidden] for model in (shared, mapped))
        left, right = source.context.head_maps.factors(expert, rank)
        expected = (before @ right.T @ left.T) * ripple(plan, before, steady)[:, None]
        assert float(expected.abs().max()) > 1e-3 * float(before.abs().max())  # the test can fail
        found = after - before
        assert float((found - expected).abs().max()) < EXACT * float(expected.abs().max())
    config = json.loads((tmp_path / "mapped" / "config.json").read_text())
    layers = config["num_hidden_layers"]
    assert config[CONTEXT_LAYERS] == [0, layers - 1]
    assert all(len(config.get(key) or [0] * layers) == layers for key in ("layer_types", "mlp_layer_types"))


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "olmo2", "granite"])
def test_16_bits_hold_them(name: str, dtype: str, tmp_path: Path, shared: Shared) -> None:
    """Where a norm follows the MLP, what it reads is small, and float16 has few digits there."""
    with shared_variant(name, tmp_path, shared) as variant:

        def composed(how: str, written: str) -> Path:
            recipe = variant.recipe(trunk="mean", router="context", vocabulary=how, dtype=written)
            variant.registry.compose(EXPERTS, tmp_path / how / written, recipe)
            return tmp_path / how / written

        check_16_bits(composed, dtype, 0.08 if (name, dtype) == ("olmo2", "float16") else 0.02)


@pytest.mark.check(after=2)
def test_ripples_are_small(variant: Variant, tmp_path: Path) -> None:
    plan = variant.registry.plan(EXPERTS, variant.recipe(trunk="mean", router="context"))
    assert isinstance(plan, Plan)
    most = RIPPLE[plan.parts.architecture.hidden_act]
    for size in (1.5, 3.0, 10.0, 100.0, 1000.0, 10_000.0):
        stream = torch.full((1, plan.lead.architecture.hidden_size), size, dtype=torch.float64)
        assert abs(float(ripple(plan, stream, 1.0)) - 1) < most


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


def test_maps_bring_logits_near_those_of_the_own_head(tmp_path: Path, filled: Registry) -> None:
    """On the streams of the shared model."""
    for how in ("shared", "mapped"):
        filled.compose(EXPERTS, tmp_path / how, Recipe(router="context", trunk="mean", vocabulary=how))
    models = [load(tmp_path / how, torch.float32) for how in ("shared", "mapped")]
    member = filled.member(filled.resolve("code"))
    head, norm = (
        torch.cat([torch.from_numpy(block) for block in member.source(f"{name}.weight").blocks()]).float()
        for name in ("lm_head", "model.norm")
    )
    share, stream = member.token_counts.double() / member.token_counts.sum(), last_stream(models[0], 0)
    normed = stream[:, : len(norm)] / (stream[:, : len(norm)].square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
    target = (normed * norm) @ head.T
    errors = [error(forced(model, 0), target.view(*IDS.shape, -1), share) for model in models]
    assert errors[1] < 0.8 * errors[0]
