"""Proves: coefficients, weights and draws are those of §2.3, eq. 2, §2.4 and algorithm 1 (Ablin et al. 2025)."""

import math

import pytest
import torch

from registry.maths.soup_weights import (
    coefficients,
    combined,
    combined_low_rank,
    draw_domain_weights,
    draw_domains,
    nearest_shares,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_coefficients_are_those_of_the_router() -> None:
    k, n, units = 3, 4, 5
    w1, b1, w2, b2 = (torch.randn(shape, generator=generator()) for shape in ((units, k), (units,), (n, units), (n,)))
    weights = [1.0, 0.0, 3.0]
    h = [weight / 4 for weight in weights]
    expected = []
    for j in range(n):  # α = φ(h), with one hidden layer (§2.3)
        total = float(b2[j])
        for f in range(units):
            hidden = float(b1[f]) + sum(float(w1[f, d]) * h[d] for d in range(k))
            total += float(w2[j, f]) * max(0.0, hidden)
        expected.append(total)
    found = coefficients(weights, (w1, b1), (w2, b2))
    assert found == pytest.approx(expected, rel=1e-12)
    assert found == coefficients([2 * weight for weight in weights], (w1, b1), (w2, b2))


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_weights_are_those_of_eq_2(shape: tuple[int, ...]) -> None:
    shared, experts = torch.randn(shape, generator=generator()), torch.randn((3, *shape), generator=generator(1))
    alpha = torch.tensor([0.5, -2.0, 0.0])
    expected = shared.clone()
    for j in range(3):  # Θ = S + Σ_j α_j E_j (eq. 2)
        expected = expected + alpha[j] * experts[j]
    assert torch.allclose(combined(shared, experts, alpha), expected, atol=1e-6)


def test_low_rank_weights_are_those_of_eq_2() -> None:
    shared = torch.randn((4, 3), generator=generator())
    left, right = torch.randn((3, 4, 2), generator=generator(1)), torch.randn((3, 2, 3), generator=generator(2))
    alpha = torch.tensor([0.5, -2.0, 1.5])
    expected = shared.clone()
    for j in range(3):  # E_j = U_j V_j (§2.6)
        for a in range(4):
            for b in range(3):
                expected[a, b] += alpha[j] * sum(left[j, a, r] * right[j, r, b] for r in range(2))
    assert torch.allclose(combined_low_rank(shared, left, right, alpha), expected, atol=1e-5)


def test_domain_weights_are_uniform_numbers_over_their_sum_on_a_uniform_support() -> None:
    weights = draw_domain_weights(5, 3, 20_000, generator())
    assert torch.allclose(weights.sum(dim=1), torch.ones(20_000, dtype=torch.float64))
    assert torch.equal((weights > 0).sum(dim=1), torch.full((20_000,), 3))
    assert torch.allclose((weights > 0).double().mean(dim=0), torch.full((5,), 0.6, dtype=torch.float64), atol=0.02)
    assert torch.allclose(weights.mean(dim=0), torch.full((5,), 0.2, dtype=torch.float64), atol=0.01)
    pairs = draw_domain_weights(5, 2, 20_000, generator())
    # u / (u + v) exceeds x ≥ 1/2 with probability (1 − x) / 2x, and so lies below 1 − x; uniform weights have 1 − x.
    for x in (0.5, 0.8, 0.9):
        assert float((pairs > x).double().sum(dim=1).mean()) == pytest.approx((1 - x) / x, abs=0.01)
    assert torch.equal(draw_domain_weights(5, 1, 4, generator()).max(dim=1).values, torch.ones(4, dtype=torch.float64))


def test_windows_come_from_the_mixture_of_their_step() -> None:
    weights = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    drawn = draw_domains(weights, 4000, generator())
    assert float((drawn[0] == 1).double().mean()) == pytest.approx(0.75, abs=0.03)
    assert not (drawn[0] == 2).any()
    assert (drawn[1] == 2).all()


def test_shares_are_those_of_the_nearest_centroids() -> None:
    centroids = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    points = [(0.1, 0.0), (0.9, 0.3), (0.8, 0.0), (0.4, 0.0)]
    counts = [0, 0, 0]
    for point in points:  # algorithm 3
        distances = [math.dist(point, centroid) for centroid in centroids.tolist()]
        counts[distances.index(min(distances))] += 1
    found = nearest_shares([torch.tensor(point, dtype=torch.float64) for point in points], centroids)
    assert found.tolist() == [count / 4 for count in counts]
