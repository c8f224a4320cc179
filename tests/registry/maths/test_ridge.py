"""Proves: the router equals a float64 least-squares reference to 1e-9, whatever the scales, weights and threads.

So does the direction of two texts.
"""

import pytest
import torch

from registry.maths.fixed_point import exponents_for, norm_bound, power_of_two, quantise
from registry.maths.router.gates import discriminant
from registry.maths.statistics import Statistics
from registry.maths.threads import one_thread
from tests.registry.maths.drawn import normal, packed, refused, ridge, with_threads

HIDDEN, WIDTH = 24, 12
SCALES = torch.full((WIDTH,), 10, dtype=torch.int16)


def expert(seed: int, tokens: int) -> tuple[Statistics, torch.Tensor]:
    """Return statistics on random activations, and the quantised activations in real units."""
    x = normal(tokens, HIDDEN, seed=seed) + normal(HIDDEN, seed=seed + 100)
    exponents = exponents_for(norm_bound(1.5 + normal(HIDDEN, seed=seed + 200).abs()))
    return Statistics.of(x, exponents), quantise(x, exponents)[0] * power_of_two(-exponents)


@pytest.mark.parametrize("lam", [1e-6, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 2.0, 7.0]])
def test_equals_least_squares(lam: float, weights: list[float]) -> None:
    experts = [expert(seed, tokens) for seed, tokens in ((1, 60), (2, 200), (3, 90))]
    # min Σ_e ω_e ‖X_e W − 1 e_eᵀ‖² + lam ‖W‖², as one tall least-squares problem
    rows = torch.cat([x * w**0.5 for (_, x), w in zip(experts, weights, strict=True)] + [torch.eye(HIDDEN) * lam**0.5])
    targets = torch.zeros(len(rows), 3, dtype=torch.float64)
    start = 0
    for e, ((_, x), weight) in enumerate(zip(experts, weights, strict=True)):
        targets[start : start + len(x), e] = weight**0.5
        start += len(x)
    solution = torch.linalg.lstsq(rows.double(), targets).solution
    reference = (solution / solution.norm(dim=0)).T
    gate = ridge((s for s, _ in experts), weights, lam)
    assert gate.dtype == torch.float64
    assert torch.allclose(gate, reference, rtol=0, atol=1e-9)
    assert torch.allclose(gate.norm(dim=1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_does_not_depend_on_the_number_of_threads() -> None:
    statistics = [expert(seed, 500)[0] for seed in range(4)]
    one, *others = with_threads(lambda: ridge(statistics, [1.0] * 4, 0.01))
    assert all(torch.equal(other, one) for other in others)


def test_what_cannot_be_solved_is_refused() -> None:
    few = expert(1, 3)[0]
    refused("not positive definite", ridge, [few, few], [1.0, 1.0], 0.0)
    refused("zero or not finite", ridge, [few, Statistics.zero(few.exponents)], [1.0, 1.0], 0.1)


def test_columns_as_they_are_have_the_same_directions() -> None:
    statistics = [expert(seed, 80)[0] for seed in (1, 2, 3)]
    plain, unit = (ridge(statistics, [1.0, 2.0, 1.0], 0.3, normalize=normalize) for normalize in (False, True))
    directions = (plain.T / plain.T.norm(dim=0)).T
    torch.testing.assert_close(directions, unit, rtol=1e-14, atol=0)  # norms add in an order that depends on the layout
    gram = statistics[0].gram + 2 * statistics[1].gram + statistics[2].gram + 0.3 * torch.eye(HIDDEN)
    moments = torch.stack([statistics[0].moment, 2 * statistics[1].moment, statistics[2].moment])
    assert torch.allclose(plain @ gram, moments, rtol=1e-9, atol=1e-9)


def test_default_is_what_it_always_was() -> None:
    statistics = [expert(seed, 80)[0] for seed in (1, 2)]
    gram = statistics[0].gram.mul_(1.0).add_(statistics[1].gram, alpha=3.0)
    gram.diagonal().add_(0.1)
    moments = torch.stack([statistics[0].moment * 1.0, statistics[1].moment * 3.0], dim=1)
    with one_thread():
        columns = torch.cholesky_solve(moments, torch.linalg.cholesky(gram))
        assert torch.equal(ridge(statistics, [1.0, 3.0], 0.1), (columns / columns.norm(dim=0)).T)


@pytest.mark.parametrize("size", [1, 63, 64, 101, 200])
def test_upper_triangle_of_the_sum_is_that_of_whole_grams(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    total = torch.zeros((size, size), dtype=torch.float64)
    sums = None
    for number, weight in enumerate((0.3, 1.0, 1.7)):
        rows = torch.randint(-30_000, 30_000, (50, size + 1), generator=draw)
        exponents = torch.randint(-3, 9, (size,), generator=draw).to(torch.int16)
        item = Statistics(rows.T @ rows * 2**21 + 1, exponents)  # beyond 53 bits
        packed(item).add_upper_gram_to(total, weight, first=number == 0)
        sums = item.gram.mul_(weight) if sums is None else sums.add_(item.gram, alpha=weight)
    assert sums is not None
    assert torch.equal(total.triu(), sums.triu())
    last = packed(item)
    assert torch.equal(last.gram, item.gram)
    assert torch.equal(last.moment, item.moment)
    assert torch.equal(last.diagonal, item.gram.diagonal())
    assert (last.count, last.unpacked()) == (item.count, item)
    factors = torch.linalg.cholesky_ex(total.mT)[0], torch.linalg.cholesky_ex(sums)[0]
    assert torch.equal(torch.nan_to_num(factors[0]), torch.nan_to_num(factors[1]))


def tokens(seed: int, count: int) -> torch.Tensor:
    """Return tokens that are on the grid of the scales."""
    rows = normal(count, WIDTH, seed=seed) + normal(WIDTH, seed=seed + 100)
    return torch.round(rows * 2**10) / 2**10


@pytest.mark.parametrize("lam", [0.0, 0.01, 100.0])
def test_the_direction_of_two_texts_is_that_of_a_ridge_regression(lam: float) -> None:
    own, other = tokens(1, 200), tokens(2, 500)
    found = discriminant(Statistics.of(own, SCALES), Statistics.of(other, SCALES), lam)
    x = torch.cat([own, other, lam**0.5 * torch.eye(WIDTH)])
    y = torch.tensor([1 / 200] * 200 + [-1 / 500] * 500 + [0.0] * WIDTH, dtype=torch.float64)
    assert torch.allclose(found, torch.linalg.lstsq(x, y[:, None]).solution[:, 0], rtol=1e-9, atol=1e-12)


def test_statistics_as_stored_give_the_same_direction() -> None:
    own, other = (Statistics.of(tokens(seed, 100), SCALES) for seed in (1, 2))
    before = own.gram
    assert torch.equal(discriminant(packed(own), other, 0.1), discriminant(own, other, 0.1))
    assert torch.equal(own.gram, before)


def test_what_has_no_mean_is_refused() -> None:
    full, empty, one = (
        Statistics.of(tokens(1, 50), SCALES),
        Statistics.zero(SCALES),
        Statistics.of(tokens(1, 1), SCALES),
    )
    for pair in ((full, empty), (empty, full)):
        refused("without tokens has no mean", discriminant, *pair, 0.1)
    refused("not positive definite", discriminant, one, one, 0.0)
