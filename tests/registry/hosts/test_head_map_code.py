"""Proves, for every family with a modelling file: the last norm gets x + s (M_e n + v_e), with n = x / s.

Compared are two compositions, one with the shared head alone: its stream before the last norm gives what the other's
last norm should get. M_e and v_e come from `HeadMaps`; both models compute in float64, so that the tolerance is that of
maps in float32.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from registry.composition.context_routing.context_cost import context_cost
from registry.composition.plan import Plan
from registry.composition.tensor_source import StoredSource
from registry.families import NormOutput
from registry.hosts.remote_code import HEAD_MAPS
from registry.runtime.gates import force_expert, gates, record_routing
from tests.conftest import Shared
from tests.registry.hosts.test_context_code import REMOTE, compose
from tests.registry.hosts.test_hosts import IDS, Variant, load, shared_variant

EXACT = 1e-6
"""Largest difference over the largest value of what maps add: weights of 32 bits have 2^-24."""


def folders(variant: Variant, folder: Path, **settings: Any) -> tuple[Plan, Any, Any]:
    """Compose with the shared head and with maps; return the second plan and both models, to compute in float64."""
    compose(variant, folder / "shared", vocabulary="shared", trunk="mean", **settings)
    plan = compose(variant, folder / "mapped", trunk="mean", **settings).plan
    return plan, *(load(folder / name, torch.float64) for name in ("shared", "mapped"))


def norm_of(plan: Plan) -> NormOutput:
    """Return the last norm."""
    return plan.lead.family.head_input(plan.lead.architecture)


def last_stream(model: Any, plan: Plan) -> Float[Tensor, "T H"]:
    """Return what the last norm gets."""
    seen: list[Tensor] = []
    norm = model.get_submodule(norm_of(plan).norm)
    handle = norm.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    return seen[0].flatten(0, 1)


def mapped(model: Any, plan: Plan, expert: int, stream: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
    """Return what the map of one expert should add: M_e x, or s (M_e n + v_e) where the norm has mean and bias."""
    matrix, shift = StoredSource(plan).context.head_maps.affine(expert)
    if not norm_of(plan).centred:
        assert not shift.any()
        return stream @ matrix.T
    centred = stream - stream.mean(dim=1, keepdim=True)
    epsilon = float(getattr(model.get_submodule(norm_of(plan).norm), "eps", 0.0))
    size = (centred.square().mean(dim=1, keepdim=True) + epsilon).sqrt()
    return centred @ matrix.T + size * shift


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("name", REMOTE)
def test_the_last_norm_gets_the_mapped_stream(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        plan, *models = folders(variant, tmp_path)
        for expert in range(2):
            streams = []
            for model in models:
                with force_expert(model, expert):
                    streams.append(last_stream(model, plan))
            expected = mapped(models[1], plan, expert, streams[0])
            assert float(expected.abs().max()) > 1e-3 * float(streams[0].abs().max())  # the test can fail
            assert float((streams[1] - streams[0] - expected).abs().max()) < EXACT * float(expected.abs().max())


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("name", REMOTE)
def test_maps_bring_logits_near_those_of_the_own_head(name: str, tmp_path: Path, shared: Shared) -> None:
    """On the streams of the shared model, by the mean square of what differs, less what all logits have in common."""
    with shared_variant(name, tmp_path, shared) as variant:
        plan, _, model = folders(variant, tmp_path)
        own = load(variant.dense["code"], torch.float64)
        share = plan.members[0].token_counts.double() / plan.members[0].token_counts.sum()
        with torch.no_grad():
            norms = [each.get_submodule(norm_of(plan).norm) for each in (own, model)]
            norms[1]._forward_pre_hooks.clear()
            size, draw = plan.lead.architecture.hidden_size, torch.Generator().manual_seed(0)
            stream = 3.0 + 5.0 * torch.randn(512, size, dtype=torch.float64, generator=draw)
            added = mapped(model, plan, 0, stream)
            target = own.get_output_embeddings()(norms[0](stream))
            errors = []
            for moved in (stream, stream + added):
                logits = model.get_output_embeddings()(norms[1](moved))
                difference = logits - target
                difference -= (difference @ share)[:, None]
                errors.append(float((difference.square() @ share).mean()) ** 0.5)
        assert errors[1] < 0.8 * errors[0], errors


@pytest.mark.check(after=1)
@pytest.mark.parametrize("name", ["gemma2", "stablelm"])
def test_several_maps_are_mixed_as_experts_are(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        plan, without, model = folders(variant, tmp_path, top_k=2, temperature=2.0)
        with record_routing(model) as routings:
            after = last_stream(model, plan)
    assert len(routings) == model.config.num_hidden_layers  # the maps' own router is not recorded
    before = last_stream(without, plan)
    weights = routings[0].weights[0].gather(1, routings[0].chosen[0].argsort(dim=1)).double()  # (T, E)
    assert 0.1 < float(weights.min(-1).values.max()) < 0.9
    expected = sum(weights[:, [expert]] * mapped(model, plan, expert, before) for expert in range(2))
    assert isinstance(expected, Tensor)
    assert float((after - before - expected).abs().max()) < EXACT * float(expected.abs().max())


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", REMOTE)
def test_16_bits_hold_them(name: str, dtype: str, tmp_path: Path, shared: Shared) -> None:
    """No weight or value is infinite, and logits are rounded hardly more than those of the shared head."""
    worst = {}
    with shared_variant(name, tmp_path, shared) as variant:
        for how in ("shared", "mapped"):
            for written in (dtype, "float32"):
                compose(variant, tmp_path / f"{how}-{written}", trunk="mean", vocabulary=how, dtype=written)
            half, exact = (
                load(tmp_path / f"{how}-{written}", getattr(torch, written)) for written in (dtype, "float32")
            )
            assert all(bool(torch.isfinite(weight).all()) for weight in half.parameters())
            pairs = [(forced(half, expert).float(), forced(exact, expert)) for expert in range(2)]
            worst[how] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    assert worst["mapped"] < 1.5 * worst["shared"], worst


def forced(model: Any, expert: int) -> Tensor:
    with torch.no_grad(), force_expert(model, expert):
        logits: Tensor = model(input_ids=IDS).logits
    assert bool(torch.isfinite(logits).all())
    return logits


@pytest.mark.check(after=1)
@pytest.mark.parametrize("name", ["gpt_neox", "llama MLP bias"])
def test_the_folder_says_whether_it_has_them(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        plans = {how: compose(variant, tmp_path / how, vocabulary=how).plan for how in ("shared", "mapped")}
        parts = ("bias", "weight") if norm_of(plans["mapped"]).bias else ("weight",)
        for how, plan in plans.items():
            config = json.loads((tmp_path / how / "config.json").read_text())
            with safe_open(tmp_path / how / "model.safetensors", framework="pt") as file:
                maps = sorted(key for key in file.keys() if key.startswith(HEAD_MAPS))  # noqa: SIM118
            expected = [f"{HEAD_MAPS}.experts.{expert}.{part}" for expert in range(2) for part in parts]
            assert config[HEAD_MAPS] is (how == "mapped")
            assert maps == (expected if how == "mapped" else [])
            cost, card = context_cost(plan), (tmp_path / how / "README.md").read_text()
            assert cost is not None
            assert (cost.layers, cost.channels, cost.maps) == (0, 0, how == "mapped")
            assert ("| head maps | linear maps before the last norm, which bring the shared" in card) is cost.maps
            model = load(tmp_path / how)
            assert plan.parameters == sum(weight.numel() for weight in model.state_dict().values())
            assert len(gates(model, every=True)) == len(gates(model)) + cost.maps
        hidden = plans["mapped"].lead.architecture.hidden_size
        more = hidden**2 + (hidden if "bias" in parts else 0)
        assert plans["mapped"].parameters - plans["shared"].parameters == 2 * more
        assert plans["mapped"].active_parameters - plans["shared"].active_parameters == more  # one expert a token
        assert not variant.registry.reproduce(tmp_path / "mapped").differing
