"""Proves: every router method is a function of its members alone, and takes its statistics one at a time."""

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from registry.composition.found import ROUTERS
from registry.composition.method import COUNTS
from registry.maths.router.gates import balanced, domain_embedding, initial_row, random
from registry.maths.router.inputs import RouterInputs
from registry.maths.statistics import PackedStatistics, Statistics
from tests.registry.maths.drawn import normal, packed, refused, ridge

HIDDEN = 20
SCALES = torch.full((HIDDEN,), 11, dtype=torch.int16)
DIGESTS = ["aa", "bb", "cc"]


def expert(seed: int, tokens: int = 300) -> Statistics:
    return Statistics.of(normal(tokens, HIDDEN, seed=seed) + normal(HIDDEN, seed=seed + 100), SCALES)


ROWS = [torch.arange(HIDDEN, dtype=torch.float32) * member for member in (0, 1, -2)]


def times(statistics: Statistics, factor: int) -> Statistics:
    return Statistics(statistics.matrix * factor, statistics.exponents)


def inputs(members: Sequence[Statistics]) -> RouterInputs:
    def one_by_one() -> Iterator[PackedStatistics]:
        yield from map(packed, members)

    return RouterInputs(
        one_by_one(),
        [1.0] * 3,
        lam=0.1,
        bias=[0.0, -0.5, 0.2],
        seed=7,
        layer=2,
        digests=DIGESTS,
        hidden_size=HIDDEN,
        rows=lambda: ROWS,
    )


DIRECT: dict[str, Callable[[Sequence[Statistics]], Tensor]] = {
    "ridge": lambda members: ridge(members, [1.0] * 3, 0.1),
    "domain-embedding": lambda members: domain_embedding(members, 0.1, [0.0, -0.5, 0.2]),
    "anchored": lambda _: torch.stack(ROWS).double(),
    "random": lambda _: random(DIGESTS, HIDDEN, 2, 7),
}
"""Method → its own function, called with the inputs below."""


@pytest.mark.parametrize("name", DIRECT)
def test_every_method_solves_from_one_set_of_inputs(name: str) -> None:
    assert {own for own, method in ROUTERS.items() if method.statistics != COUNTS} == set(DIRECT)
    members = [expert(seed) for seed in (1, 2, 3)]
    before, solve = [member.matrix.clone() for member in members], ROUTERS[name].solve
    assert solve is not None
    gate = solve(inputs(members))
    assert gate.shape == (3, HIDDEN)
    assert gate.dtype == torch.float64
    assert torch.equal(gate, DIRECT[name](members))
    assert all(torch.equal(member.matrix, b) for member, b in zip(members, before, strict=True))
    refused("at least one expert", solve, RouterInputs(hidden_size=HIDDEN))


def test_balance_depends_on_the_ratios_of_counts_only() -> None:
    given, counts = [1.0, 0.5, 2.0], [10, 999, 123_456]
    assert balanced(given, [24_576] * 3) == given
    assert balanced([1.0, 1.0], [100, 300]) == [2.0, 2 / 3]
    assert balanced([1.0, 2.0, 3.0], [7, 11, 13]) == balanced([1.0, 2.0, 3.0], [70, 110, 130])
    assert balanced([3.0, 1.0], [13, 7]) == balanced([1.0, 3.0], [7, 13])[::-1]
    shares = [w * n / o for w, n, o in zip(balanced(given, counts), counts, given, strict=True)]
    assert shares == pytest.approx([sum(counts) / 3] * 3, rel=1e-15)
    refused("without tokens", balanced, [1.0, 1.0], [5, 0])


def test_an_expert_with_ten_times_the_tokens_gets_the_same_balanced_router() -> None:
    members = [expert(1, 200), expert(2, 500), expert(3, 90)]
    both = members, [times(members[0], 10), *members[1:]]
    gates = [ridge(m, balanced([1.0] * 3, [s.count for s in m]), 1e-6) for m in both]
    plain = [ridge(m, [1.0] * 3, 1e-6) for m in both]
    assert torch.allclose(gates[0], gates[1], rtol=0, atol=1e-7)
    assert (plain[0] - plain[1]).abs().max() > 0.01


def test_a_domain_embedding_is_the_mean_feature() -> None:
    members = [expert(1, 100), expert(2, 700)]
    means = torch.stack([member.moment / member.count for member in members])
    assert torch.equal(domain_embedding(members, normalize=False), means)
    unit = domain_embedding(members)
    assert torch.allclose(unit, means / means.norm(dim=1, keepdim=True), rtol=0, atol=1e-15)
    assert torch.equal(domain_embedding([times(members[0], 4), members[1]]), unit)
    assert torch.equal(domain_embedding(members, bias=[0.0, 0.0]), unit)


def test_a_bias_is_carried_by_the_best_linear_constant() -> None:
    x = [torch.round((normal(400, HIDDEN, seed=seed) + centre) * 2**11) / 2**11 for seed, centre in ((1, 2), (2, -2))]
    members = [Statistics.of(rows, SCALES) for rows in x]
    plain, biased = domain_embedding(members, 1e-6), domain_embedding(members, 1e-6, [0.0, -3.0])
    assert torch.equal(biased[0], plain[0])
    constant = torch.linalg.lstsq(torch.cat(x), torch.ones(800, 1, dtype=torch.float64)).solution[:, 0]
    assert torch.allclose(biased[1], plain[1] - 3.0 * constant, rtol=0, atol=1e-7)


def test_what_has_no_mean_is_refused() -> None:
    refused("without tokens has no mean", domain_embedding, [Statistics.zero(SCALES)])
    refused("zero or not finite", domain_embedding, [Statistics.of(torch.zeros(5, HIDDEN), SCALES)])
    refused("not positive definite", domain_embedding, [expert(1, 3)], 0.0, [0.5])


def test_random_rows_are_a_function_of_member_layer_and_seed_and_leave_the_random_state_alone() -> None:
    torch.manual_seed(5)
    gate, after = random(DIGESTS, HIDDEN, 3, 1), torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after)
    assert torch.equal(random(DIGESTS[::-1], HIDDEN, 3, 1), gate.flip(0))
    assert torch.equal(random(DIGESTS[1:2], HIDDEN, 3, 1), gate[1:2])
    for other in (random(DIGESTS, HIDDEN, 4, 1), random(DIGESTS, HIDDEN, 3, 2), random(["x", "y", "z"], HIDDEN, 3, 1)):
        assert not bool((other == gate).any())


def test_random_rows_are_normal_with_squared_length_one() -> None:
    rows = random([str(n) for n in range(50)], 2000, 0, normalize=False)
    assert rows.square().sum(dim=1).mean().item() == pytest.approx(1, abs=0.01)
    z = rows.flatten() * math.sqrt(2000)
    assert z.mean().item() == pytest.approx(0, abs=0.01)
    assert z.pow(4).mean().item() == pytest.approx(3, abs=0.1)
    assert torch.allclose(random(["a"], 30, 0).norm(dim=1), torch.ones(1, dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_first_row_is_the_difference_of_unit_vectors() -> None:
    mean, public = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([0.0, 2.0, 0.0])
    expected = torch.tensor([0.6, -1.0, 0.8], dtype=torch.float64)
    assert torch.allclose(initial_row(mean, public), expected, rtol=0, atol=1e-15)
    assert torch.equal(initial_row(public, mean), -initial_row(mean, public))
    assert not initial_row(mean, 5 * mean).abs().gt(1e-15).any()
    for wrong in (torch.zeros(3), torch.tensor([1.0, torch.nan, 0.0]), torch.tensor([torch.inf, 1.0, 0.0])):
        refused("zero or not finite", initial_row, mean, wrong)
