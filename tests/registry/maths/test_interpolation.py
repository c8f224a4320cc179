"""Proves: gates, sparsity, penalty, overlap, the multiplier and layers between experts compute what their papers say.

References are plain loops over experts and outputs; the equations are named beside them: of gates those of Louizos et
al. 2018, of experts the sum of SIMoE (Chen et al. 2025), θ = θ_pre + Σ_m α_m (z_m ∘ δ).
"""

import math
from functools import partial

import pytest
import torch

from registry.maths.interpolation import (
    change,
    expected_gates,
    expected_sparsity,
    expert_weight,
    expert_weights,
    final_masks,
    next_multiplier,
    orthogonality,
    overlap,
    overlap_matrix,
    pack_bits,
    sampled_gates,
    unpack_bits,
)
from tests.registry.maths.drawn import normal

GAMMA, ZETA, BETA = -0.1, 1.1, 2 / 3
"""γ, ζ and β of Louizos et al. 2018, section 4.1."""


drawn = partial(normal, dtype=torch.float32)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cut(s: float) -> float:
    return min(1.0, max(0.0, s * (ZETA - GAMMA) + GAMMA))


def cosine(one: list[float], other: list[float]) -> float:
    lengths = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / lengths


def test_gates_are_hard_concrete() -> None:
    log_alpha = drawn(3, 20) * 3
    uniform = torch.rand((3, 20), generator=torch.Generator().manual_seed(1))
    sampled, expected, likely = [], [], []
    for a, u in zip(log_alpha.flatten().tolist(), uniform.flatten().tolist(), strict=True):
        s = sigmoid((math.log(u) - math.log(1 - u) + a) / BETA)  # eq. 10
        sampled.append(cut(s))  # eq. 11
        likely.append(sigmoid(a - BETA * math.log(-GAMMA / ZETA)))  # eq. 12
        expected.append(cut(sigmoid(a)))  # eq. 13
    assert sampled_gates(log_alpha, uniform).flatten().tolist() == pytest.approx(sampled, abs=1e-5)
    assert expected_gates(log_alpha).flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert float(expected_sparsity(log_alpha)) == pytest.approx(1 - sum(likely) / len(likely), abs=1e-6)


def test_uniform_numbers_of_0_give_a_closed_gate_and_finite_gradients() -> None:
    log_alpha = torch.zeros(3, requires_grad=True)
    gates = sampled_gates(log_alpha, torch.tensor([0.0, 0.5, 1 - 2**-24]))
    gates.sum().backward()
    assert gates.tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert log_alpha.grad is not None
    assert bool(log_alpha.grad.isfinite().all())


def test_orthogonality_is_the_distance_of_the_products_of_gates_from_the_identity() -> None:
    gates = torch.rand((4, 30), generator=torch.Generator().manual_seed(3))
    gates[gates < 0.4] = 0
    layers, distances = gates.split((10, 20), dim=1), []
    for layer in layers:
        rows, squares = layer.tolist(), 0.0
        for m in range(4):
            for k in range(4):  # ‖Z Zᵀ - I‖, the diagonal too
                product = sum(x * y for x, y in zip(rows[m], rows[k], strict=True))
                squares += (product - (m == k)) ** 2
        distances.append(math.sqrt(squares))
    assert float(orthogonality(layers)) == pytest.approx(sum(distances) / 2, rel=1e-5)
    squared = sum(x * x for x in gates[0].tolist())
    assert float(orthogonality([gates[:1]])) == pytest.approx(abs(squared - 1), rel=1e-5)
    assert float(orthogonality([torch.ones(2, 5)])) == pytest.approx(math.sqrt(2 * 4**2 + 2 * 5**2))
    assert float(orthogonality([torch.zeros(2, 5)])) == pytest.approx(math.sqrt(2))
    least = torch.eye(3, 5, requires_grad=True)
    orthogonality([least]).backward()
    assert orthogonality([least]).item() == 0
    assert least.grad is not None
    assert not bool(least.grad.any())


def test_overlap_is_the_mean_cosine_of_two_different_masks() -> None:
    masks = torch.rand((4, 30), generator=torch.Generator().manual_seed(3))
    masks[masks < 0.4] = 0
    rows = masks.tolist()
    pairs = [cosine(rows[m], rows[k]) for m in range(4) for k in range(4) if m != k]  # off the diagonal of Z Zᵀ
    assert float(overlap(masks)) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert overlap_matrix(masks)[0, 1].item() == pytest.approx(cosine(rows[0], rows[1]), abs=1e-6)
    disjoint = torch.tensor([[1.0, 0, 0], [0, 1, 1]])
    assert float(overlap(disjoint)) == 0
    assert float(overlap(torch.ones(3, 5))) == pytest.approx(1)
    assert float(overlap(torch.ones(1, 5))) == 0
    assert float(overlap(torch.zeros(2, 5))) == 0


def test_multiplier_rises_while_masks_are_too_full_and_begins_again_where_they_are_not() -> None:
    assert next_multiplier(1.0, 0.5, 0.75, 0.1) == pytest.approx(1.025)  # λ + η (τ - s)
    assert next_multiplier(1.0, 0.75, 0.75, 0.1) == 0
    assert next_multiplier(1.0, 0.95, 0.75, 0.1) == 0


@pytest.mark.parametrize("least", [0.0, 0.1, 0.5, 0.75, 0.9, 0.999, 1 / 3])
def test_final_masks_are_as_sparse_as_asked_for_and_keep_the_most_open_gates(least: float) -> None:
    equal, few = final_masks(torch.full((2, 4), 9.0), 0.5)  # of equal gates the last are closed
    assert (equal.flatten().tolist(), few) == ([True] * 4 + [False] * 4, 4)
    log_alpha = drawn(3, 37)
    masks, closed = final_masks(log_alpha, least)
    count, kept = masks.numel(), int(masks.sum())
    likely = [sigmoid(a - BETA * math.log(-GAMMA / ZETA)) for a in log_alpha.flatten().tolist()]  # eq. 12
    assert 1 - kept / count >= least
    assert kept + closed == round(sum(likely))
    if closed:
        assert 1 - (kept + 1) / count < least  # no more than needed
    by_alpha = sorted(range(count), key=lambda gate: -likely[gate])
    assert sorted(masks.flatten().nonzero().flatten().tolist()) == sorted(by_alpha[:kept])
    packed, bits = pack_bits(masks[0]), masks[0].tolist()
    assert packed.tolist() == [sum(2**i for i, one in enumerate(bits[at : at + 8]) if one) for at in range(0, 37, 8)]
    for size in (1, 7, 8, 37):
        assert torch.equal(unpack_bits(pack_bits(masks[0, :size]), size), masks[0, :size])


def test_layer_is_that_of_the_weighted_sum_of_experts() -> None:
    windows, tokens, experts, inputs, outputs, size = 2, 3, 4, 5, 6, 7
    base, delta, x = drawn(outputs, inputs), drawn(outputs, inputs, seed=1), drawn(windows, tokens, inputs, seed=2)
    masks, prompt, router = (drawn(experts, outputs, seed=3) > 0).float(), drawn(windows, size), drawn(experts, size)
    alpha = expert_weights(prompt, router)
    found = x @ base.T + change(x, delta, alpha @ masks)
    for b in range(windows):
        scores = [math.exp(sum(float(router[m, h] * prompt[b, h]) for h in range(size))) for m in range(experts)]
        weights = [score / sum(scores) for score in scores]  # α = softmax(router(prompt))
        assert alpha[b].tolist() == pytest.approx(weights, rel=1e-5)
        for t in range(tokens):
            for o in range(outputs):
                y = 0.0
                for i in range(inputs):  # θ_pre + Σ_m α_m (z_m ∘ δ)
                    change_of = sum(weights[m] * float(masks[m, o]) * float(delta[o, i]) for m in range(experts))
                    y += (float(base[o, i]) + change_of) * float(x[b, t, i])
                assert float(found[b, t, o]) == pytest.approx(y, abs=1e-5)
    one = expert_weight(base, delta, masks[1])
    for o in range(outputs):
        expected = [float(base[o, i]) + float(masks[1, o] * delta[o, i]) for i in range(inputs)]  # diag(z) D
        assert one[o].tolist() == pytest.approx(expected, abs=1e-6)
