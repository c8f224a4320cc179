"""Proves: the overlap of known Gaussians is what theory says, for any H, rank, order and count of tokens."""

import math

import pytest
import torch

from registry.maths import overlap as module
from registry.maths.overlap import Overlap, leading_directions, mahalanobis, overlap
from registry.maths.statistics import Statistics

BITS = 20
"""Of the integers: at the scale below activations reach ±32 in steps of 2^-14."""


def of(x: torch.Tensor, scale: int = 14) -> Statistics:
    statistics = Statistics.of(x, torch.full((x.shape[1],), scale, dtype=torch.int16), bits=BITS)
    assert statistics.saturated == 0
    return statistics


def normal(seed: int, *shape: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.empty(*shape, dtype=torch.float64).normal_(generator=draw)


def mixing(size: int, seed: int = 99) -> torch.Tensor:
    """Return an invertible matrix: rows of white noise times this have a covariance that is far from diagonal."""
    matrix: torch.Tensor = (normal(seed, size, size) / size**0.5 + torch.eye(size)) / 2
    return matrix


def rotation(size: int, seed: int = 98) -> torch.Tensor:
    q: torch.Tensor = torch.linalg.qr(normal(seed, size, size)).Q
    return q


def close(a: Overlap, b: Overlap, tolerance: float) -> bool:
    pairs = zip((a.distance, a.routing, a.subspace), (b.distance, b.routing, b.subspace), strict=True)
    return all(math.isclose(x, y, rel_tol=0, abs_tol=tolerance) for x, y in pairs)


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize("distance", [0.5, 1.0, 3.0])
def test_known_gaussians_lie_as_far_apart_as_they_were_put(distance: float) -> None:
    size, tokens = 12, 20_000
    shift = normal(3, size)
    shift *= distance / shift.norm()
    mix = mixing(size)
    a, b = of((normal(1, tokens, size) + shift) @ mix), of(normal(2, tokens, size) @ mix)
    # The variance of D² is about 4 D² · 2/n + …, so D is off by √(2/n) = 0.01 or so.
    assert mahalanobis(a, b) == pytest.approx(distance, abs=0.04)
    whole = overlap(a, b, rank=size)
    assert whole.distance == pytest.approx(mahalanobis(a, b), rel=1e-6)
    assert whole.routing == pytest.approx(2 * phi(-distance / 2), abs=0.02)
    assert whole.subspace == pytest.approx(1)


def test_routing_is_the_error_of_the_best_linear_rule_on_fresh_tokens() -> None:
    size, tokens = 8, 20_000
    spread = torch.linspace(3, 0.5, size)
    shift = torch.zeros(size)
    shift[0], shift[1] = 4.0, 2.0
    a, b = of(normal(1, tokens, size) * spread + shift), of(normal(2, tokens, size) * spread)
    expected = overlap(a, b, rank=4).routing
    rule = shift / spread**2
    middle = float(rule @ shift) / 2
    missed = ((normal(3, tokens, size) * spread + shift) @ rule.double() < middle).double().mean()
    taken = ((normal(4, tokens, size) * spread) @ rule.double() > middle).double().mean()
    assert expected == pytest.approx(float(missed + taken), abs=0.015)


@pytest.mark.check(after=1)
@pytest.mark.parametrize(("n_a", "n_b"), [(40, 40), (30, 90)])
def test_few_tokens_do_not_inflate_the_distance(n_a: int, n_b: int) -> None:
    size, draws, distance = 24, 200, 3.0
    shift = torch.zeros(size)
    shift[0] = distance
    squares = [
        mahalanobis(of(normal(2 * i, n_a, size) + shift), of(normal(2 * i + 1, n_b, size))) ** 2 for i in range(draws)
    ]
    # Uncorrected, D² is about 1.5 (Δ² + 1.2) here. One estimate spreads by 3 or so, their mean by 0.2.
    assert sum(squares) / draws == pytest.approx(distance**2, abs=0.7)


def test_equal_statistics_overlap_wholly() -> None:
    a = of(normal(1, 100, 20) @ mixing(20))
    assert overlap(a, a, rank=5).distance == 0
    assert overlap(a, a, rank=5).routing == 1
    assert overlap(a, a, rank=5).subspace == pytest.approx(1, abs=1e-12)
    assert mahalanobis(a, a) == 0


def test_two_samples_of_one_text_overlap_almost_wholly() -> None:
    mix = mixing(64) @ torch.diag(torch.arange(1, 65).double() ** -1.0)
    both = overlap(of(normal(1, 5000, 64) @ mix), of(normal(2, 5000, 64) @ mix))
    assert both.distance < 0.1
    assert both.routing > 0.95
    assert both.subspace > 0.9


def test_what_lies_apart_does_not_overlap() -> None:
    size = 40
    spread = torch.full((2, size), 0.01, dtype=torch.float64)
    spread[0, :8], spread[1, 20:28] = 1.0, 1.0
    shift = torch.zeros(size)
    shift[30] = 20.0
    apart = overlap(of(normal(1, 3000, size) * spread[0] + shift), of(normal(2, 3000, size) * spread[1]), rank=8)
    assert apart.distance > 100
    assert apart.routing == pytest.approx(0, abs=1e-12)
    assert apart.subspace == pytest.approx(0, abs=1e-3)


def test_half_a_subspace_is_a_half() -> None:
    spread = torch.full((2, 20), 0.01, dtype=torch.float64)
    spread[0, :4], spread[1, 2:6] = 1.0, 1.0
    a, b = (of(normal(seed, 3000, 20) * spread[seed] @ rotation(20)) for seed in (0, 1))
    assert overlap(a, b, rank=4).subspace == pytest.approx(0.5, abs=1e-3)


def test_a_shift_where_tokens_hardly_vary_is_for_the_full_distance_only() -> None:
    size = 40
    spread = torch.full((size,), 0.01)
    spread[:16] = 1.0
    shift = torch.zeros(size)
    shift[0], shift[-1] = 0.5, 0.03
    turn = rotation(size)
    a = of((normal(1, 5000, size) * spread + shift) @ turn)
    b = of((normal(2, 5000, size) * spread) @ turn)
    assert overlap(a, b).distance == pytest.approx(0.5, abs=0.06)
    assert mahalanobis(a, b) == pytest.approx(math.hypot(0.5, 3.0), abs=0.1)


def test_a_common_linear_map_leaves_the_full_distance_as_it_is() -> None:
    size = 16
    x, y = normal(1, 400, size) + 0.3, normal(2, 300, size)
    before, mix = mahalanobis(of(x), of(y)), mixing(size)
    assert before > 0.5
    assert mahalanobis(of(x @ mix), of(y @ mix)) == pytest.approx(before, rel=1e-3)
    assert mahalanobis(of(x / 4), of(y / 4)) == pytest.approx(before, rel=1e-3)


def test_a_common_rotation_leaves_the_overlap_as_it_is() -> None:
    size = 32
    spread = torch.arange(1, size + 1).double() ** -1.0
    x, y = normal(1, 500, size) * spread + 0.1, normal(2, 500, size) * spread
    turn = rotation(size)
    assert close(overlap(of(x), of(y), 6), overlap(of(x @ turn), of(y @ turn), 6), 1e-3)


def test_order_and_scales_do_not_matter() -> None:
    x, y = normal(1, 200, 30) @ mixing(30), normal(2, 90, 30) + 0.2
    a, b = of(x), of(y)
    assert close(overlap(a, b, 7), overlap(b, a, 7), 1e-9)
    assert mahalanobis(a, b) == pytest.approx(mahalanobis(b, a), rel=1e-9)
    assert close(overlap(a, b, 7), overlap(a, of(y, scale=15), 7), 1e-3)


def test_channels_that_are_constant_or_copies_do_no_harm() -> None:
    x, y = normal(1, 300, 10) + 0.3, normal(2, 300, 10)
    plain = mahalanobis(of(x), of(y))

    def more(z: torch.Tensor) -> torch.Tensor:
        return torch.cat([z, torch.zeros(300, 2), torch.full((300, 2), 7.7), z[:, :3]], dim=1)

    a, b = of(more(x)), of(more(y))
    # The copies count as channels that vary, and the bias of three more is taken off: 3 (1/n_a + 1/n_b) = 0.02.
    assert mahalanobis(a, b) == pytest.approx(plain, abs=0.03)
    assert all(math.isfinite(v) for v in (overlap(a, b).distance, overlap(a, b).routing, overlap(a, b).subspace))


def test_a_constant_that_differs_tells_experts_apart() -> None:
    x, y = normal(1, 300, 10), normal(2, 300, 10)
    a = of(torch.cat([x, torch.full((300, 1), 5.0)], dim=1))
    b = of(torch.cat([y, torch.full((300, 1), 6.0)], dim=1))
    assert mahalanobis(a, b) > 1000
    assert overlap(a, b, rank=11).routing == 0


def test_where_nothing_varies_the_means_decide() -> None:
    ones = torch.ones(50, 6)
    assert overlap(of(ones), of(ones)).distance == 0
    assert overlap(of(ones), of(ones)).routing == 1
    assert overlap(of(ones), of(2 * ones)).distance == math.inf
    assert overlap(of(ones), of(2 * ones)).routing == 0


def test_fewer_tokens_than_channels_still_get_an_answer() -> None:
    size = 200
    spread = 4 * torch.arange(1, size + 1).double() ** -1.0
    shift = torch.zeros(size)
    shift[0] = 12.0
    alike = overlap(of(normal(1, 64, size) * spread), of(normal(2, 64, size) * spread))
    apart = overlap(of(normal(1, 64, size) * spread + shift), of(normal(2, 64, size) * spread))
    assert alike.routing > 0.7
    assert apart.distance == pytest.approx(3, abs=0.7)
    with pytest.raises(ValueError, match=r"64 and 64 tokens are too few for a distance over 200 channels"):
        mahalanobis(of(normal(1, 64, size)), of(normal(2, 64, size)))


def test_a_handful_of_tokens_has_a_handful_of_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def record(matrix: torch.Tensor, rank: int) -> torch.Tensor:
        taken.append(rank)
        return leading_directions(matrix, rank)

    monkeypatch.setattr(module, "leading_directions", record)
    for tokens, size in ((4, 50), (11, 50), (1000, 50), (1000, 5)):
        overlap(of(normal(1, tokens, size)), of(normal(2, 1000, size)))
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


def test_iteration_and_full_decomposition_give_the_same_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 640
    spread = torch.arange(1, size + 1).double() ** -0.5
    turn = rotation(size)
    a = of((normal(1, 300, size) * spread + 0.1 * spread) @ turn)
    b = of((normal(2, 300, size) * spread) @ turn)
    iterated = overlap(a, b)
    monkeypatch.setattr(module, "SMALL", size)
    assert close(iterated, overlap(a, b), 1e-5)


def test_iteration_takes_a_matrix_of_low_rank() -> None:
    size = 600
    axes = rotation(size)[:, :3]
    found = leading_directions(axes @ axes.T, 5)
    assert float((found[:, :3].T @ axes).square().sum()) == pytest.approx(3)
    assert torch.isfinite(leading_directions(torch.zeros(size, size, dtype=torch.float64), 5)).all()


def test_leaves_its_statistics_as_they_were() -> None:
    a, b = of(normal(1, 60, 8)), of(normal(2, 60, 8))
    before = a.matrix.clone(), b.matrix.clone()
    overlap(a, b)
    mahalanobis(a, b)
    assert torch.equal(a.matrix, before[0])
    assert torch.equal(b.matrix, before[1])


def test_what_cannot_be_compared_is_refused() -> None:
    a = of(normal(1, 60, 8))
    for compare in (overlap, mahalanobis):
        with pytest.raises(ValueError, match="8 channels cannot be compared with 9"):
            compare(a, of(normal(2, 60, 9)))
    with pytest.raises(ValueError, match="rank is 0"):
        overlap(a, a, rank=0)
    with pytest.raises(ValueError, match="3 tokens of an expert are too few"):
        overlap(a, of(normal(2, 3, 8)))
    with pytest.raises(ValueError, match="60 and 0 tokens are too few"):
        mahalanobis(a, Statistics.zero(a.exponents))
    impossible = a.matrix.clone()
    impossible.diagonal()[:2].mul_(-3)
    with pytest.raises(ValueError, match="that of no activations"):
        overlap(Statistics(impossible, a.exponents), a)
