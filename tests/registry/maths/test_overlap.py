"""Proves: the overlap of known Gaussians is what theory says, for any H, rank, order and count of tokens.

Overlaps told from summaries are those told from whole Grams, where K directions hold what varies.
"""

import math

import pytest
import torch

from registry.maths import overlap as module
from registry.maths.overlap import (
    Overlap,
    Summary,
    centred,
    distance_along,
    leading_directions,
    overlap,
    summary_overlap,
)
from registry.maths.statistics import Statistics
from tests.registry.maths.drawn import normal, refused

BITS = 20
"""Of the integers: at the scale below activations reach ±32 in steps of 2^-14."""


def mahalanobis(a: Statistics, b: Statistics) -> float:
    """Return the Mahalanobis distance of two experts' means over all H channels, corrected for its bias."""
    (mean_a, scatter_a), (mean_b, scatter_b) = centred(a), centred(b)
    within = scatter_a.add_(scatter_b).div_(a.count + b.count - 2)
    return distance_along(within, mean_a - mean_b, a.count, b.count)


def of(x: torch.Tensor, scale: int = 14) -> Statistics:
    statistics = Statistics.of(x, torch.full((x.shape[1],), scale, dtype=torch.int16), bits=BITS)
    assert statistics.saturated == 0
    return statistics


def mixing(size: int, seed: int = 99) -> torch.Tensor:
    """Return an invertible matrix: rows of white noise times this have a covariance that is far from diagonal."""
    matrix: torch.Tensor = (normal(size, size, seed=seed) / size**0.5 + torch.eye(size)) / 2
    return matrix


def rotation(size: int, seed: int = 98) -> torch.Tensor:
    q: torch.Tensor = torch.linalg.qr(normal(size, size, seed=seed)).Q
    return q


def close(a: Overlap, b: Overlap, tolerance: float) -> bool:
    pairs = zip((a.distance, a.routing, a.subspace), (b.distance, b.routing, b.subspace), strict=True)
    return all(math.isclose(x, y, rel_tol=0, abs_tol=tolerance) for x, y in pairs)


def vector(size: int, rest: float, *others: tuple[slice | int, float]) -> torch.Tensor:
    """Return a vector of equal numbers, but for others at some places."""
    made = torch.full((size,), rest, dtype=torch.float64)
    for place, value in others:
        made[place] = value
    return made


@pytest.mark.parametrize("distance", [0.5, 1.0, 3.0])
def test_known_gaussians_lie_as_far_apart_as_they_were_put(distance: float) -> None:
    size, tokens = 12, 20_000
    shift = normal(size, seed=3)
    shift *= distance / shift.norm()
    mix = mixing(size)
    a, b = of((normal(tokens, size, seed=1) + shift) @ mix), of(normal(tokens, size, seed=2) @ mix)
    # The variance of D² is about 4 D² · 2/n + …, so D is off by √(2/n) = 0.01 or so.
    assert mahalanobis(a, b) == pytest.approx(distance, abs=0.04)
    whole = overlap(a, b, rank=size)
    assert whole.distance == pytest.approx(mahalanobis(a, b), rel=1e-6)
    assert whole.routing == pytest.approx(math.erfc(distance / math.sqrt(8)), abs=0.02)
    assert whole.subspace == pytest.approx(1)


def test_routing_is_the_error_of_the_best_linear_rule_on_fresh_tokens() -> None:
    size, tokens = 8, 20_000
    spread, shift = torch.linspace(3, 0.5, size).double(), vector(size, 0.0, (0, 4.0), (1, 2.0))
    x, y, fresh_x, fresh_y = (normal(tokens, size, seed=seed) * spread for seed in range(4))
    rule = shift / spread**2
    missed = ((fresh_x + shift) @ rule < rule @ shift / 2).double().mean()
    taken = (fresh_y @ rule > rule @ shift / 2).double().mean()
    assert overlap(of(x + shift), of(y), rank=4).routing == pytest.approx(float(missed + taken), abs=0.015)


@pytest.mark.check(after=1)
@pytest.mark.parametrize(("n_a", "n_b"), [(40, 40), (30, 90)])
def test_few_tokens_do_not_inflate_the_distance(n_a: int, n_b: int) -> None:
    draws, shift = range(0, 400, 2), vector(24, 0.0, (0, 3.0))
    squares = [mahalanobis(of(normal(n_a, 24, seed=i) + shift), of(normal(n_b, 24, seed=i + 1))) ** 2 for i in draws]
    # Uncorrected, D² is about 1.5 (Δ² + 1.2) here. One estimate spreads by 3 or so, their mean by 0.2.
    assert sum(squares) / len(draws) == pytest.approx(3.0**2, abs=0.7)


def test_equal_statistics_overlap_wholly_and_stay_as_they_were() -> None:
    a = of(normal(100, 20, seed=1) @ mixing(20))
    before, found = a.matrix.clone(), overlap(a, a, rank=5)
    assert (found.distance, found.routing, mahalanobis(a, a)) == (0, 1, 0)
    assert found.subspace == pytest.approx(1, abs=1e-12)
    assert torch.equal(a.matrix, before)


def test_half_a_subspace_is_a_half() -> None:
    spreads = (vector(20, 0.01, (slice(start, start + 4), 1.0)) for start in (0, 2))
    a, b = (of(normal(3000, 20, seed=seed) * spread @ rotation(20)) for seed, spread in enumerate(spreads))
    assert overlap(a, b, rank=4).subspace == pytest.approx(0.5, abs=1e-3)


def test_a_shift_where_tokens_hardly_vary_is_for_the_full_distance_only() -> None:
    size, turn = 40, rotation(40)
    spread, shift = vector(size, 0.01, (slice(16), 1.0)), vector(size, 0.0, (0, 0.5), (-1, 0.03))
    a = of((normal(5000, size, seed=1) * spread + shift) @ turn)
    b = of((normal(5000, size, seed=2) * spread) @ turn)
    assert overlap(a, b).distance == pytest.approx(0.5, abs=0.06)
    assert mahalanobis(a, b) == pytest.approx(math.hypot(0.5, 3.0), abs=0.1)


def test_a_common_map_leaves_the_full_distance_and_a_common_rotation_the_overlap() -> None:
    size = 32
    spread, turn, mix = torch.arange(1, size + 1).double() ** -1.0, rotation(size), mixing(size)
    x, y = normal(500, size, seed=1) * spread + 0.1, normal(500, size, seed=2) * spread
    before = mahalanobis(of(x), of(y))
    assert before > 0.5
    for change in (mix, turn / 4):
        assert mahalanobis(of(x @ change), of(y @ change)) == pytest.approx(before, rel=1e-3)
    assert close(overlap(of(x), of(y), 6), overlap(of(x @ turn), of(y @ turn), 6), 1e-3)


def test_order_and_scales_do_not_matter() -> None:
    x, y = normal(200, 30, seed=1) @ mixing(30), normal(90, 30, seed=2) + 0.2
    a, b = of(x), of(y)
    assert close(overlap(a, b, 7), overlap(b, a, 7), 1e-9)
    assert mahalanobis(a, b) == pytest.approx(mahalanobis(b, a), rel=1e-9)
    assert close(overlap(a, b, 7), overlap(a, of(y, scale=15), 7), 1e-3)


def test_channels_that_are_constant_or_copies_do_no_harm() -> None:
    x, y = normal(300, 10, seed=1) + 0.3, normal(300, 10, seed=2)
    plain = mahalanobis(of(x), of(y))

    def more(z: torch.Tensor) -> torch.Tensor:
        return torch.cat([z, torch.zeros(300, 2), torch.full((300, 2), 7.7), z[:, :3]], dim=1)

    a, b = of(more(x)), of(more(y))
    # The copies count as channels that vary, and the bias of three more is taken off: 3 (1/n_a + 1/n_b) = 0.02.
    assert mahalanobis(a, b) == pytest.approx(plain, abs=0.03)
    assert all(math.isfinite(v) for v in (overlap(a, b).distance, overlap(a, b).routing, overlap(a, b).subspace))


def test_a_constant_that_differs_tells_experts_apart() -> None:
    a, b = (of(torch.cat([normal(300, 10, seed=seed), torch.full((300, 1), 4.0 + seed)], dim=1)) for seed in (1, 2))
    assert mahalanobis(a, b) > 1000
    assert overlap(a, b, rank=11).routing == 0


def test_where_nothing_varies_the_means_decide() -> None:
    a, b = of(torch.ones(50, 6)), of(2 * torch.ones(50, 6))
    assert (overlap(a, a).distance, overlap(a, a).routing) == (0, 1)
    assert (overlap(a, b).distance, overlap(a, b).routing) == (math.inf, 0)
    assert [summary_overlap(*summaries(a, other)).distance for other in (a, b)] == [0, math.inf]


def test_fewer_tokens_than_channels_still_get_an_answer() -> None:
    size, shift = 200, vector(200, 0.0, (0, 12.0))
    x, y = (normal(64, size, seed=seed) * 4 / torch.arange(1, size + 1) for seed in (1, 2))
    assert overlap(of(x), of(y)).routing > 0.7
    assert overlap(of(x + shift), of(y)).distance == pytest.approx(3, abs=0.7)


def test_a_handful_of_tokens_has_a_handful_of_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def record(matrix: torch.Tensor, rank: int) -> torch.Tensor:
        taken.append(rank)
        return leading_directions(matrix, rank)

    monkeypatch.setattr(module, "leading_directions", record)
    for tokens, size in ((4, 50), (11, 50), (1000, 50), (1000, 5)):
        overlap(of(normal(tokens, size, seed=1)), of(normal(1000, size, seed=2)))
    assert taken == [1] * 3 + [2] * 3 + [16] * 3 + [5] * 3


@pytest.mark.parametrize("rank", [1, 5, 16, 24])
def test_iteration_equals_the_full_decomposition(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 600
    axes, values = rotation(size), torch.arange(1, size + 1).double() ** -1.0
    matrix = (axes * values) @ axes.T
    found = leading_directions(matrix, rank)
    assert torch.equal(found, leading_directions(matrix, rank))
    assert torch.allclose(found.T @ found, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.allclose((found.T @ axes[:, :rank]).abs(), torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-4)
    monkeypatch.setattr(module, "SMALL", size)
    full = leading_directions(matrix, rank)
    assert float((found.T @ full).square().sum()) == pytest.approx(rank, abs=1e-8)


def test_iteration_takes_a_matrix_of_low_rank() -> None:
    size = 600
    axes = rotation(size)[:, :3]
    found = leading_directions(axes @ axes.T, 5)
    assert float((found[:, :3].T @ axes).square().sum()) == pytest.approx(3)
    assert torch.isfinite(leading_directions(torch.zeros(size, size, dtype=torch.float64), 5)).all()


def test_what_cannot_be_compared_is_refused() -> None:
    a, wide, few = of(normal(60, 8, seed=1)), of(normal(60, 9, seed=2)), of(normal(3, 8, seed=2))
    for compare in (overlap, lambda one, other: summary_overlap(*summaries(one, other))):
        refused("8 channels cannot be compared with 9", compare, a, wide)
    for compare in (overlap, lambda one, other, rank=16: summary_overlap(*summaries(one, other), rank)):
        refused("rank is 0", compare, a, a, rank=0)
        refused("3 tokens of an expert are too few", compare, a, few)


def summaries(a: Statistics, b: Statistics, directions: int = 48) -> tuple[Summary, Summary]:
    return Summary.of(a, directions), Summary.of(b, directions)


def pair(size: int, shift: float = 0.3) -> tuple[Statistics, Statistics]:
    """Return the statistics of two experts whose tokens vary most along partly different directions."""
    spread = torch.arange(1, size + 1).double() ** -0.75
    moved = torch.zeros(size)
    moved[1] = shift
    mine = of((normal(1500, size, seed=1) * spread + moved) @ rotation(size))
    return mine, of((normal(1200, size, seed=2) * spread.roll(3)) @ rotation(size))


def test_all_directions_give_the_same_overlap_and_equal_summaries_overlap_wholly() -> None:
    a, b = pair(40)
    assert close(summary_overlap(*summaries(a, b)), overlap(a, b), 1e-5)
    found = summary_overlap(*summaries(a, a))
    assert (found.distance, found.routing) == (0, 1)
    assert found.subspace == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_some_directions_give_nearly_the_same_overlap(shift: float) -> None:
    a, b = pair(200, shift)
    exact, found = overlap(a, b), summary_overlap(*summaries(a, b))
    assert found.routing == pytest.approx(exact.routing, abs=0.01)
    assert found.subspace == pytest.approx(exact.subspace, abs=1e-5)


@pytest.mark.parametrize("directions", [2, 8])
def test_a_gram_of_no_activations_has_no_overlap_and_no_summary(directions: int) -> None:
    of_some = of(normal(60, 8, seed=1))
    negative, beyond = of_some.matrix.clone(), of_some.matrix.clone()
    negative.diagonal()[:2].mul_(-3)
    beyond[0, 1] = beyond[1, 0] = 5 * beyond.diagonal().max()
    for impossible in (negative, beyond):
        refused("that of no activations", Summary.of, Statistics(impossible, of_some.exponents), directions)
    refused("that of no activations", overlap, Statistics(negative, of_some.exponents), of_some)
    refused("it counts none", Summary.of, Statistics.zero(of_some.exponents))
