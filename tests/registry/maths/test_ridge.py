"""Proves: the router equals a float64 least-squares reference to 1e-9, whatever the scales, weights and threads."""

import pytest
import torch

from registry.maths.fixed_point import exponents_for, norm_bound, power_of_two, quantise
from registry.maths.router.ridge import ridge
from registry.maths.statistics import PackedStatistics, Statistics

HIDDEN = 24


def expert(seed: int, tokens: int) -> tuple[Statistics, torch.Tensor]:
    """Return statistics on random activations, and the quantised activations in real units."""
    draw = torch.Generator().manual_seed(seed)
    centre = torch.empty(HIDDEN).normal_(generator=draw)
    x = torch.empty(tokens, HIDDEN).normal_(generator=draw) + centre
    exponents = exponents_for(norm_bound(torch.empty(HIDDEN).uniform_(1.5, 4.0, generator=draw)))
    return Statistics.of(x, exponents), quantise(x, exponents)[0].double() * power_of_two(-exponents)


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
    before = torch.get_num_threads()
    gates = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            gates.append(ridge(statistics, [1.0] * 4, 0.01))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(gates[0], gates[1])
    assert torch.equal(gates[0], gates[2])


def test_leaves_its_statistics_as_they_were() -> None:
    statistics = [expert(seed, 50)[0] for seed in (1, 2)]
    before = [s.matrix.clone() for s in statistics]
    ridge(statistics, [2.0, 3.0], 0.5)
    assert all(torch.equal(s.matrix, b) for s, b in zip(statistics, before, strict=True))


def test_what_cannot_be_solved_is_refused() -> None:
    few = expert(1, 3)[0]
    with pytest.raises(ValueError, match="not positive definite"):
        ridge([few, few], [1.0, 1.0], 0.0)
    with pytest.raises(ValueError, match="zero or not finite"):
        ridge([few, Statistics.zero(few.exponents)], [1.0, 1.0], 0.1)
    with pytest.raises(ValueError, match="at least one expert"):
        ridge([], [], 0.1)


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
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        columns = torch.cholesky_solve(moments, torch.linalg.cholesky(gram))
        assert torch.equal(ridge(statistics, [1.0, 3.0], 0.1), (columns / columns.norm(dim=0)).T)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 63, 64, 101, 200])
def test_upper_triangle_of_the_sum_is_that_of_whole_grams(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    total, packed = torch.zeros((2, size, size), dtype=torch.float64)
    sums = None
    for number, weight in enumerate((0.3, 1.0, 1.7)):
        rows = torch.randint(-30_000, 30_000, (50, size + 1), generator=draw)
        exponents = torch.randint(-3, 9, (size,), generator=draw).to(torch.int16)
        item = Statistics(rows.T @ rows * 2**21 + 1, exponents)  # beyond 53 bits
        item.add_upper_gram_to(total, weight, first=number == 0)
        PackedStatistics(item.packed(), exponents).add_upper_gram_to(packed, weight, first=number == 0)
        sums = item.gram.mul_(weight) if sums is None else sums.add_(item.gram, alpha=weight)
    assert sums is not None
    assert torch.equal(total.triu(), sums.triu())
    assert torch.equal(packed.triu(), sums.triu())
    last = PackedStatistics(item.packed(), exponents)
    assert torch.equal(last.gram, item.gram)
    assert torch.equal(last.moment, item.moment)
    assert torch.equal(last.diagonal, item.gram.diagonal())
    assert (last.count, last.unpacked()) == (item.count, item)
    factors = torch.linalg.cholesky_ex(total.mT)[0], torch.linalg.cholesky_ex(sums)[0]
    assert torch.equal(torch.nan_to_num(factors[0]), torch.nan_to_num(factors[1]))
