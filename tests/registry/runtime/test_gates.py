"""Proves: on every host, each layer's router is found, its decisions are recorded, and any expert can be forced."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.calibration import Calibration
from registry.errors import InvalidInputError
from registry.runtime.gates import as_returned, choice, force_expert, gates, in_order, record_routing
from registry.training import TrainSettings
from registry.training.router_trainer import RouterTrainer
from registry.training.training_windows import Windows
from tests.conftest import Shared
from tests.registry.hosts.test_hosts import CASES, IDS, load, run, shared_variant, with_mlp_of

# Host → a case of it; all remote code has one router.
EXACT = {name: case for name, case in CASES.items() if case.tolerance == (0.0, 0.0)}
ONE_EACH = {case.host: name for name, case in EXACT.items() if not case.host.startswith("routed_")} | {
    "remote-code": "gpt_neox"
}
ALL = torch.arange(2)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("host", sorted(ONE_EACH))
def test_forced_expert_computes_what_it_does_by_itself(host: str, tmp_path: Path, shared: Shared) -> None:
    case = CASES[ONE_EACH[host]]
    with shared_variant(ONE_EACH[host], tmp_path, shared) as variant:
        variant.registry.compose(["code", "math"], tmp_path / "moe", variant.recipe(trunk="base", top_k=2))
        moe, trunk = load(tmp_path / "moe"), load(variant.dense["base"], **case.dense)
        assert [gate.layer for gate in gates(moe)] == list(range(moe.config.num_hidden_layers))
        assert all(gate.experts == gate.top_k == 2 for gate in gates(moe))
        routed = run(moe)
        for index, name in enumerate(("code", "math")):
            dense = with_mlp_of(trunk, load(variant.dense[name], **case.dense))
            with force_expert(moe, index), record_routing(moe) as seen:
                assert torch.equal(run(moe), run(dense))
            for routing in seen:
                taken = routing.chosen[0].gather(1, routing.weights[0].argmax(dim=1, keepdim=True))
                assert bool((taken == index).all())
                assert torch.equal(routing.weights[0].amax(dim=1), torch.ones(IDS.numel()))
        with record_routing(moe) as seen:
            assert torch.equal(run(moe), routed)  # both contexts left nothing behind
        for gate, routing in zip(gates(moe), seen, strict=True):
            check_choice(gate, routing)
            holder: Any = gate.block if gate.is_linear else gate.module
            holder.top_k = 1
        check_training(moe, 2)
        with pytest.raises(InvalidInputError, match="no router"):
            gates(trunk)
        for expert in (-1, 2):
            with pytest.raises(InvalidInputError, match="it has 2"), force_expert(moe, expert):
                raise AssertionError("entered")


def check_choice(gate: Any, routing: Any) -> torch.Tensor:
    """Check that recorded choices follow from recorded logits, and return their weights."""
    weights, chosen = choice(gate, routing.logits[0])
    assert routing.logits[0].shape == (IDS.numel(), gate.experts)
    assert torch.equal(routing.chosen[0], chosen)
    assert torch.allclose(routing.weights[0], weights, atol=1e-6)
    return weights


def test_routers_may_return_their_three_in_either_order() -> None:
    """As GraniteMoE's do by the version of transformers."""
    parts = torch.randn(3, 4), torch.ones(3, 2), torch.tensor([[0, 1], [2, 3], [1, 0]])
    for output in (parts, parts[::-1]):
        assert all(ours is given for ours, given in zip(in_order(output), parts, strict=True))
        assert all(ours is theirs for ours, theirs in zip(as_returned(parts, output), output, strict=True))


def check_training(moe: Any, candidates: int) -> None:
    """Check that routers get a gradient, and nothing else does; nothing is different in the forward pass."""
    windows = Windows(Calibration(IDS.int(), torch.full((2,), 48, dtype=torch.int32), ""), ALL, ALL, 0)
    trainer = RouterTrainer(moe, windows, TrainSettings(batch_size=2), candidates=candidates)
    moe.zero_grad()
    before = run(moe)
    with trainer._trained():
        logits = moe(input_ids=IDS).logits
        assert torch.allclose(logits, before, atol=1e-4)  # an expert of weight 0 adds exact zeros, in another order
        logits.logsumexp(-1).sum().backward()
    gradients = {name: weight.grad for name, weight in moe.named_parameters() if weight.grad is not None}
    assert list(gradients) == [f"{gate.name}.weight" for gate in gates(moe)]
    assert all(bool(gradient.abs().sum() > 0) for gradient in gradients.values())
    assert torch.equal(run(moe), before)
