"""Proves: every router method is a function of its members alone, and takes its statistics one at a time."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch

from registry.maths.router import BASE, COUNTS, OWN, ROUTERS, RouterInputs, balanced
from registry.maths.router.anchored import initial_row
from registry.maths.router.domain_embedding import domain_embedding
from registry.maths.router.random import random
from registry.maths.router.ridge import ridge
from registry.maths.statistics import Statistics

HIDDEN = 20
SCALES = torch.full((HIDDEN,), 11, dtype=torch.int16)
DIGESTS = ["aa", "bb", "cc"]


def expert(seed: int, tokens: int = 300) -> Statistics:
    draw = torch.Generator().manual_seed(seed)
    centre = torch.empty(HIDDEN).normal_(generator=draw)
    return Statistics.of(torch.empty(tokens, HIDDEN).normal_(generator=draw) + centre, SCALES)


ROWS = [torch.arange(HIDDEN, dtype=torch.float32) * member for member in (0, 1, -2)]


def times(statistics: Statistics, factor: int) -> Statistics:
    return Statistics(statistics.matrix * factor, statistics.exponents)


def inputs(members: Sequence[Statistics]) -> RouterInputs:
    def one_by_one() -> Iterator[Statistics]:
        yield from members

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


def test_table_says_what_each_method_takes() -> None:
    assert {name: (method.features, sorted(method.options)) for name, method in ROUTERS.items()} == {
        "ridge": (OWN, ["lam", "normalize", "weights"]),
        "context": (COUNTS, ["context_window", "vocabulary"]),
        "domain-embedding": (BASE, ["bias", "lam", "normalize"]),
        "anchored": (None, ["bias"]),
        "random": (None, ["normalize", "seed"]),
    }


@pytest.mark.parametrize("name", [name for name, method in ROUTERS.items() if method.features != COUNTS])
def test_every_method_solves_from_one_set_of_inputs(name: str) -> None:
    members = [expert(seed) for seed in (1, 2, 3)]
    before = [member.matrix.clone() for member in members]
    solve = ROUTERS[name].solve
    assert solve is not None
    gate = solve(inputs(members))
    direct = {
        "ridge": lambda: ridge(members, [1.0] * 3, 0.1),
        "domain-embedding": lambda: domain_embedding(members, 0.1, [0.0, -0.5, 0.2]),
        "anchored": lambda: torch.stack(ROWS).double(),
        "random": lambda: random(DIGESTS, HIDDEN, 2, 7),
    }[name]()
    assert gate.shape == (3, HIDDEN)
    assert gate.dtype == torch.float64
    assert torch.equal(gate, direct)
    assert all(torch.equal(member.matrix, b) for member, b in zip(members, before, strict=True))


@pytest.mark.parametrize("name", ["ridge", "domain-embedding", "anchored"])
def test_no_expert_is_refused(name: str) -> None:
    solve = ROUTERS[name].solve
    assert solve is not None
    with pytest.raises(ValueError, match="at least one expert"):
        solve(RouterInputs())


def test_equal_counts_leave_weights_as_they_are() -> None:
    assert balanced([1.0, 0.1, 7.3], [24_576] * 3) == [1.0, 0.1, 7.3]


def test_balance_depends_on_the_ratios_of_counts_only() -> None:
    assert balanced([1.0, 1.0], [100, 300]) == [2.0, 2 / 3]
    assert balanced([1.0, 2.0, 3.0], [7, 11, 13]) == balanced([1.0, 2.0, 3.0], [70, 110, 130])
    assert balanced([3.0, 1.0], [13, 7]) == balanced([1.0, 3.0], [7, 13])[::-1]
    weights = balanced([1.0, 0.5, 2.0], [10, 999, 123_456])
    assert [w * n / o for w, n, o in zip(weights, [10, 999, 123_456], [1.0, 0.5, 2.0], strict=True)] == pytest.approx(
        [(10 + 999 + 123_456) / 3] * 3, rel=1e-15
    )


def test_an_expert_with_ten_times_the_tokens_gets_the_same_balanced_router() -> None:
    members = [expert(1, 200), expert(2, 500), expert(3, 90)]
    more = [times(members[0], 10), *members[1:]]
    gates = [ridge(m, balanced([1.0] * 3, [s.count for s in m]), 1e-6) for m in (members, more)]
    plain = [ridge(m, [1.0] * 3, 1e-6) for m in (members, more)]
    assert torch.allclose(gates[0], gates[1], rtol=0, atol=1e-7)
    assert (plain[0] - plain[1]).abs().max() > 0.01


def test_what_cannot_be_balanced_is_refused() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        balanced([1.0, 1.0], [5, 0])
    with pytest.raises(ValueError, match="2 weights do not go with 1 counts"):
        balanced([1.0, 1.0], [5])


def test_a_domain_embedding_is_the_mean_feature() -> None:
    members = [expert(1, 100), expert(2, 700)]
    means = torch.stack([member.moment / member.count for member in members])
    assert torch.equal(domain_embedding(members, normalize=False), means)
    unit = domain_embedding(members)
    assert torch.allclose(unit, means / means.norm(dim=1, keepdim=True), rtol=0, atol=1e-15)
    assert torch.equal(domain_embedding([times(members[0], 4), members[1]]), unit)
    assert torch.equal(domain_embedding(members, bias=[0.0, 0.0]), unit)


def test_a_bias_is_carried_by_the_best_linear_constant() -> None:
    draw = torch.Generator().manual_seed(0)
    x = [torch.empty(400, HIDDEN).normal_(generator=draw) + 2 * seed for seed in (1, -1)]
    members = [Statistics.of(rows, SCALES) for rows in x]
    plain, biased = domain_embedding(members, 1e-6), domain_embedding(members, 1e-6, [0.0, -3.0])
    assert torch.equal(biased[0], plain[0])
    rows = torch.cat([torch.round(r * 2**11).double() / 2**11 for r in x])
    constant = torch.linalg.lstsq(rows, torch.ones(len(rows), 1, dtype=torch.float64)).solution[:, 0]
    assert torch.allclose(biased[1], plain[1] - 3.0 * constant, rtol=0, atol=1e-7)


def test_a_bias_is_a_constant_where_features_have_one() -> None:
    x = torch.empty(300, HIDDEN).normal_(generator=torch.Generator().manual_seed(0))
    x[:, 4] = 2.0  # a linear router has its intercept
    members = [Statistics.of(x[:100], SCALES), Statistics.of(x[100:], SCALES)]
    change = domain_embedding(members, 1e-9, [0.25, -1.0]) - domain_embedding(members)
    assert torch.allclose(
        change @ x.double().T, torch.tensor([[0.25], [-1.0]], dtype=torch.float64).expand(2, 300), atol=1e-8
    )


def test_one_bias_for_all_changes_no_choice() -> None:
    members = [expert(seed) for seed in (1, 2, 3)]
    change = domain_embedding(members, 0.1, [-2.0] * 3) - domain_embedding(members)
    assert torch.allclose(change, change[:1].expand(3, -1), rtol=0, atol=1e-13)
    assert change.abs().max() > 0.1


def test_what_has_no_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="without tokens has no mean"):
        domain_embedding([Statistics.zero(SCALES)])
    with pytest.raises(ValueError, match="zero or not finite"):
        domain_embedding([Statistics.of(torch.zeros(5, HIDDEN), SCALES)])
    with pytest.raises(ValueError, match="1 biases do not go with 2 experts"):
        domain_embedding([expert(1), expert(2)], 0.1, [0.5])
    with pytest.raises(ValueError, match="not positive definite"):
        domain_embedding([expert(1, 3)], 0.0, [0.5])


def test_random_rows_are_a_function_of_member_layer_and_seed() -> None:
    gate = random(DIGESTS, HIDDEN, 3, 1)
    assert torch.equal(random(DIGESTS[::-1], HIDDEN, 3, 1), gate.flip(0))
    assert torch.equal(random(DIGESTS[1:2], HIDDEN, 3, 1), gate[1:2])
    for other in (random(DIGESTS, HIDDEN, 4, 1), random(DIGESTS, HIDDEN, 3, 2), random(["x", "y", "z"], HIDDEN, 3, 1)):
        assert not bool((other == gate).any())


def test_random_rows_leave_the_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    random(DIGESTS, HIDDEN, 0)
    assert torch.equal(torch.rand(3), expected)


def test_random_rows_are_normal_with_squared_length_one() -> None:
    rows = random([str(n) for n in range(50)], 2000, 0, normalize=False)
    assert rows.square().sum(dim=1).mean().item() == pytest.approx(1, abs=0.01)
    z = rows.flatten() * math.sqrt(2000)
    assert z.mean().item() == pytest.approx(0, abs=0.01)
    assert z.pow(4).mean().item() == pytest.approx(3, abs=0.1)
    assert torch.allclose(random(["a"], 30, 0).norm(dim=1), torch.ones(1, dtype=torch.float64), rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="at least one expert"):
        random([], 30, 0)


def test_a_first_row_is_the_difference_of_unit_vectors() -> None:
    mean, public = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([0.0, 2.0, 0.0])
    expected = torch.tensor([0.6, -1.0, 0.8], dtype=torch.float64)
    assert torch.allclose(initial_row(mean, public), expected, rtol=0, atol=1e-15)
    assert torch.equal(initial_row(public, mean), -initial_row(mean, public))
    assert not initial_row(mean, 5 * mean).abs().gt(1e-15).any()
    for wrong in (torch.zeros(3), torch.tensor([1.0, torch.nan, 0.0]), torch.tensor([torch.inf, 1.0, 0.0])):
        with pytest.raises(ValueError, match="zero or not finite"):
            initial_row(mean, wrong)
