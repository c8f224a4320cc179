"""Proves, for every family with a modelling file: the last norm gets x + s (M_e n + v_e), with n = x / s.

Compared are two compositions, one with the shared head alone: its stream before the last norm gives what the other's
last norm should get. M_e and v_e come from `HeadMaps`; both models compute in float64, so that the tolerance is that of
maps in float32.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from registry.composition.plan import Plan
from registry.families import NormOutput
from registry.hosts.remote_code import HEAD_MAPS
from registry.methods.moe.plan import context_cost
from registry.methods.moe.tensor_source import StoredSource
from registry.runtime.gates import gates, record_routing
from tests.conftest import Shared
from tests.registry.hosts.test_context_code import REMOTE, compose
from tests.registry.hosts.test_head_map_layer import check_16_bits, error, last_stream
from tests.registry.hosts.test_hosts import Variant, load, shared_variant, tensors_of

EXACT = 1e-6
"""Largest difference over the largest value of what maps add: weights of 32 bits have 2^-24."""


def folders(variant: Variant, folder: Path, **settings: Any) -> tuple[Plan, Any, Any, str]:
    """Compose with the shared head and with maps.

    Return the second plan, both models, to compute in float64, and the name of their last norm.
    """
    compose(variant, folder / "shared", vocabulary="shared", trunk="mean", **settings)
    plan = compose(variant, folder / "mapped", trunk="mean", **settings).plan
    shared, mapped = (load(folder / name, torch.float64) for name in ("shared", "mapped"))
    return plan, shared, mapped, norm_of(plan).norm


def norm_of(plan: Plan) -> NormOutput:
    """Return the last norm."""
    return plan.lead.family.last_norm


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
        plan, without, model, norm = folders(variant, tmp_path)
        for expert in range(2):
            before, after = (last_stream(each, expert, norm) for each in (without, model))
            expected = mapped(model, plan, expert, before)
            assert float(expected.abs().max()) > 1e-3 * float(before.abs().max())  # the test can fail
            assert float((after - before - expected).abs().max()) < EXACT * float(expected.abs().max())


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("name", REMOTE)
def test_maps_bring_logits_near_those_of_the_own_head(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant, torch.no_grad():
        plan, _, model, norm = folders(variant, tmp_path)
        own, counts = load(variant.dense["code"], torch.float64), plan.members[0].token_counts.double()
        norms = [each.get_submodule(norm) for each in (own, model)]
        norms[1]._forward_pre_hooks.clear()
        size, draw = plan.lead.architecture.hidden_size, torch.Generator().manual_seed(0)
        stream = 3.0 + 5.0 * torch.randn(512, size, dtype=torch.float64, generator=draw)
        target = own.get_output_embeddings()(norms[0](stream))
        errors = [
            error(model.get_output_embeddings()(norms[1](moved)), target, counts / counts.sum())
            for moved in (stream, stream + mapped(model, plan, 0, stream))
        ]
        assert errors[1] < 0.8 * errors[0], errors


@pytest.mark.check(after=1)
@pytest.mark.parametrize("name", ["gemma2", "stablelm"])
def test_several_maps_are_mixed_as_experts_are(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        plan, without, model, norm = folders(variant, tmp_path, top_k=2, temperature=2.0)
        with record_routing(model) as routings:
            after = last_stream(model, norm=norm)
    assert len(routings) == model.config.num_hidden_layers  # the maps' own router is not recorded
    before = last_stream(without, norm=norm)
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
    with shared_variant(name, tmp_path, shared) as variant:
        settings = partial(compose, variant, trunk="mean")
        check_16_bits(lambda how, own: settings(tmp_path / f"{how} {own}", vocabulary=how, dtype=own).folder, dtype)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("name", ["gpt_neox", "llama MLP bias"])
def test_the_folder_says_whether_it_has_them(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        plans = {how: compose(variant, tmp_path / how, vocabulary=how).plan for how in ("shared", "mapped")}
        parts = ("bias", "weight") if norm_of(plans["mapped"]).bias else ("weight",)
        for how, plan in plans.items():
            config = json.loads((tmp_path / how / "config.json").read_text())
            maps = sorted(key for key in tensors_of(tmp_path / how) if key.startswith(HEAD_MAPS))
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
