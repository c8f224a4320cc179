"""Proves: each trunk method equals an independent float64 reference, whatever the blocks its tensors come in."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.maths.fixed_point import exponents_for
from registry.maths.statistics import PackedStatistics, Statistics
from registry.maths.trunk import TRUNKS, Combination
from registry.maths.trunk import combination as combination_module
from registry.maths.trunk.combination import Rows
from registry.maths.trunk.dare import kept
from registry.maths.trunk.regmean import RIDGE, products, regmean_together

DIGESTS = ["a" * 64, "b" * 64, "c" * 64]


def tensors(count: int = 4, shape: tuple[int, ...] = (7, 5), seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).to(torch.bfloat16) for _ in range(count)]


def blocks(tensor: torch.Tensor, size: int = 100) -> Callable[[], Iterator[torch.Tensor]]:
    return lambda: iter(tensor.split(size))


def combined(method: str, members: Sequence[torch.Tensor], **changes: Any) -> torch.Tensor:
    size = changes.pop("size", 100)
    base = changes.pop("base", None)
    options = TRUNKS[method].options | changes.pop("options", {})
    weights = changes.pop("weights", [1.0] * len(members))
    if "inputs" in changes:  # whole statistics, given as they are stored and as products
        statistics = list(changes.pop("inputs")())
        changes |= {"inputs": lambda: map(stored, statistics), "products": products_with(members, statistics)}
    combination = Combination(
        "w",
        [blocks(member, size + number) for number, member in enumerate(members)],
        weights,
        None if base is None else blocks(base, size),
        DIGESTS[: len(members)],
        input_weights=changes.pop("input_weights", weights),
        options=options,
        **changes,
    )
    return torch.cat([part.double() for part in TRUNKS[method].combine(combination)])


def stored(statistics: Statistics) -> PackedStatistics:
    return PackedStatistics(statistics.packed(), statistics.exponents)


def products_with(members: Sequence[torch.Tensor], statistics: Sequence[Statistics]) -> list[Rows]:
    """The rows of each member's W_e G_e, from a plain product."""
    whole = [member.double() @ taken.gram for member, taken in zip(members, statistics, strict=True)]
    return [partial(lambda product, start, stop: product[start:stop], product) for product in whole]


def test_mean_of_one_is_itself_and_of_several_the_weighted_average() -> None:
    one, two, three, _ = tensors()
    assert torch.equal(combined("mean", [one]), one.double())
    expected = (one.double() + two.double() + three.double()) / 3
    assert torch.equal(combined("mean", [one, two, three]), expected)
    weighted = combined("mean", [one, two], weights=[3.0, 1.0])
    assert torch.equal(weighted, (3 * one.double() + two.double()) / 4)


def test_base_is_the_base_models() -> None:
    one, two, base, _ = tensors()
    assert torch.equal(combined("base", [], base=base), base.double())
    longer = torch.cat([one, two[:2]])
    rows = combined("base", [longer], base=base, size=3)
    assert torch.equal(rows, torch.cat([base, two[:2]]).double())


@pytest.mark.check
@settings(deadline=None)
@given(
    density=st.floats(0.05, 1.0),
    scale=st.floats(-2, 2),
    seed=st.integers(0, 99),
    size=st.integers(1, 9),
    weights=st.tuples(*[st.sampled_from([1.0, 1.0, 0.5, 3.0])] * 3),
)
def test_ties_equals_a_reference(
    density: float, scale: float, seed: int, size: int, weights: tuple[float, ...]
) -> None:
    *members, base = tensors(seed=seed)
    share = [w / (sum(weights) / 3) for w in weights]
    total, used, tasks = torch.zeros(7, 5).double(), torch.zeros(7, 5).double(), []
    for member, weight in zip(members, share, strict=True):
        task = member.double() - base.double()
        number = max(1, round(density * task.numel()))
        least = task.abs().flatten().sort(descending=True).values[number - 1]
        tasks.append(torch.where(task.abs() >= least, task, 0.0) * weight)
    sign = torch.stack(tasks).sum(0).sign()
    for task, weight in zip(tasks, share, strict=True):
        agrees = (task.sign() == sign) & (task != 0)
        total, used = total + task * agrees, used + weight * agrees.double()
    expected = base.double() + scale * torch.where(used > 0, total / used, 0.0)
    found = combined(
        "ties", members, base=base, size=size, options={"density": density, "scale": scale}, weights=list(weights)
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.check
@settings(deadline=None)
@given(density=st.floats(0.05, 1.0), scale=st.floats(-2, 2), seed=st.integers(0, 99), size=st.integers(1, 9))
def test_dare_equals_a_reference(density: float, scale: float, seed: int, size: int) -> None:
    *members, base = tensors(seed=seed)
    expected = torch.zeros(7, 5).double()
    for number, member in enumerate(members):
        mask = torch.cat([kept(DIGESTS[number], "w", row, torch.Size((1, 5)), density) for row in range(7)])
        expected += mask * (member.double() - base.double()) / density / 3
    found = combined("dare", members, base=base, size=size, options={"density": density, "scale": scale})
    torch.testing.assert_close(found, base.double() + scale * expected, rtol=1e-13, atol=1e-13)


SUMMED = {"density": 0.6, "scale": 1 / 3}


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (3.0, 1.0, 0.5)])
def test_ties_summed_equals_the_paper_entry_by_entry(weights: tuple[float, ...]) -> None:
    """θ_0 + λ Σ of the entries that stay and agree in sign (MergeME §3.1.2; Yadav et al. 2023, §3), in plain loops."""
    *members, base = tensors()
    omega = [weight / (sum(weights) / len(weights)) for weight in weights]
    zero = base.double().flatten().tolist()
    tasks = [
        [a - b for a, b in zip(member.double().flatten().tolist(), zero, strict=True)] for member in members
    ]  # τ_e = θ_e − θ_0
    trimmed = []
    for task in tasks:  # trim: the share d of largest magnitude
        least = sorted((abs(entry) for entry in task), reverse=True)[max(1, round(0.6 * len(task))) - 1]
        trimmed.append([entry if abs(entry) >= least else 0.0 for entry in task])
    expected = []
    for number, origin in enumerate(zero):
        entries = [weight * task[number] for weight, task in zip(omega, trimmed, strict=True)]
        elected = sum(entries)  # elect: the sign of the sum
        merged = sum(entry for entry in entries if entry * elected > 0)  # the sum of those that agree
        expected.append(origin + merged / 3)
    found = combined("ties", members, base=base, size=3, options=SUMMED, weights=list(weights), summed=True)
    torch.testing.assert_close(found.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-13)
    mean = combined("ties", members, base=base, size=3, options=SUMMED, weights=list(weights))
    assert not torch.allclose(found, mean)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (3.0, 1.0, 0.5)])
def test_dare_summed_equals_the_paper_entry_by_entry(weights: tuple[float, ...]) -> None:
    """θ_0 + λ Σ_e m_e ∘ τ_e / d (Yu et al. 2024, §3.2, dropping and rescaling; MergeME §3.1.2, the sum)."""
    *members, base = tensors()
    omega = [weight / (sum(weights) / len(weights)) for weight in weights]
    expected = base.double().clone()
    for number, (member, weight) in enumerate(zip(members, omega, strict=True)):
        for row in range(7):
            mask = kept(DIGESTS[number], "w", row, torch.Size((1, 5)), 0.6)[0]
            for column in range(5):
                if mask[column]:
                    task = float(member[row, column]) - float(base[row, column])
                    expected[row, column] += weight * task / 0.6 / 3
    found = combined("dare", members, base=base, size=3, options=SUMMED, weights=list(weights), summed=True)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    mean = combined("dare", members, base=base, size=3, options=SUMMED, weights=list(weights))
    torch.testing.assert_close(found - base.double(), 3 * (mean - base.double()), rtol=1e-12, atol=1e-13)


def test_dare_summed_that_drops_nothing_is_task_arithmetic() -> None:
    *members, base = tensors()
    found = combined("dare", members, base=base, options={"density": 1.0, "scale": 0.3}, summed=True)
    torch.testing.assert_close(found, combined("task-arithmetic", members, base=base), rtol=1e-14, atol=1e-14)


def test_dares_mask_keeps_its_share_and_follows_from_the_digest() -> None:
    mask = kept(DIGESTS[0], "w", 0, torch.Size((200, 500)), 0.8)
    assert abs(float(mask.double().mean()) - 0.8) < 0.005
    assert torch.equal(mask[3:5], kept(DIGESTS[0], "w", 3, torch.Size((2, 500)), 0.8))
    assert not torch.equal(mask, kept(DIGESTS[1], "w", 0, torch.Size((200, 500)), 0.8))
    assert kept(DIGESTS[0], "w", 0, torch.Size((4,)), 1.0).all()  # a norm's weight has one axis


def test_task_arithmetic_equals_a_reference() -> None:
    *members, base = tensors()
    expected = base.double() + 0.4 * sum(member.double() - base.double() for member in members)
    found = combined("task-arithmetic", members, base=base, size=2, options={"scale": 0.4})
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_coefficients_equal_a_reference(dtype: torch.dtype) -> None:
    """θ(α) = θ_0 + Σ_e α_e (θ_e − θ_0), Soup-of-Experts, eq. 2–3, in plain loops; α = 1 for one member alone is it."""
    *members, base = (tensor.to(dtype) for tensor in tensors())
    coefficients = [0.7, -1.3, 0.0]
    found = combined("task-arithmetic", members, base=base, size=2, coefficients=coefficients)
    for row, column in itertools.product(range(base.shape[0]), range(base.shape[1])):
        start = float(base[row, column])
        expected = start
        for coefficient, member in zip(coefficients, members, strict=True):
            expected += coefficient * (float(member[row, column]) - start)
        assert float(found[row, column]) == pytest.approx(expected, rel=1e-14, abs=1e-14)
    for number, member in enumerate(members):
        only = [float(number == other) for other in range(len(members))]
        assert torch.equal(combined("task-arithmetic", members, base=base, coefficients=only).to(dtype), member)


def test_rows_that_the_base_model_lacks_have_no_coefficient() -> None:
    first, second, base = tensors(3)
    found = combined("task-arithmetic", [first, second], base=base[:4], coefficients=[2.0, -1.0])
    assert torch.equal(found[4:], (first[4:].double() + second[4:].double()) / 2)
    shorter = combined("task-arithmetic", [first, second[:4]], base=base, coefficients=[2.0, -1.0])
    assert torch.equal(shorter[4:], (first[4:].double() - base[4:].double()) * 2 + base[4:].double())


def features(seed: int, tokens: int = 64, width: int = 5) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(width, width, generator=draw)
    return torch.randn(tokens, width, generator=draw) @ mixed


def taken(x: torch.Tensor) -> Statistics:
    return Statistics.of(x, exponents_for(x.abs().amax(0) * 1.1, 20), bits=20)


def exact(x: torch.Tensor, statistics: Statistics) -> torch.Tensor:
    """The features that the statistics are of: rounded to their resolution."""
    unit = torch.exp2(-statistics.exponents.double())
    return torch.round(x.double() / unit) * unit


@pytest.mark.parametrize("size", [1, 3, 100])
def test_regmean_equals_the_joint_least_squares_solution(size: int) -> None:
    members = tensors(3)
    raw = [features(seed) for seed in range(3)]
    statistics = [taken(x) for x in raw]
    weights = [1.0, 2.0, 0.5]
    rows = [exact(x, of) * w**0.5 for x, of, w in zip(raw, statistics, weights, strict=True)]
    targets = torch.cat([x @ member.double().T for x, member in zip(rows, members, strict=True)])
    ridge = (RIDGE * float(sum((x * x).sum(0) for x in rows).mean())) ** 0.5
    average = torch.stack([w * m.double() for w, m in zip(weights, members, strict=True)]).sum(0) / sum(weights)
    design = torch.cat([*rows, ridge * torch.eye(5).double()])
    expected = torch.linalg.lstsq(design, torch.cat([targets, ridge * average.mT])).solution.T
    plain = torch.linalg.lstsq(torch.cat(rows), targets).solution.T
    found = combined("regmean", members, size=size, inputs=lambda: iter(statistics), weights=weights)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-6 * 100)  # the ridge alone is 1e-6 of the diagonal


def test_regmean_at_alpha_0_weighs_channels_alone() -> None:
    members, statistics = tensors(2), [taken(features(seed)) for seed in range(2)]
    diagonals = [of.gram.diagonal() for of in statistics]
    ridge = RIDGE * float(sum(diagonals).mean())  # type: ignore[union-attr]
    average = (members[0].double() + members[1].double()) / 2
    expected = sum(m.double() * d for m, d in zip(members, diagonals, strict=True)) + ridge * average
    found = combined("regmean", members, inputs=lambda: iter(statistics), options={"alpha": 0.0})
    torch.testing.assert_close(found, expected / (sum(diagonals) + ridge), rtol=1e-12, atol=1e-12)


def test_regmean_weighs_an_embeddings_rows_by_their_use() -> None:
    one, two = tensors(2)
    counts = [torch.tensor([3, 0, 1, 0, 0, 0, 2]), torch.tensor([1, 0, 1, 5, 0, 0, 0])]
    found = combined("regmean", [one, two], counts=counts, size=2)
    for row, (a, b) in enumerate(zip(*(count.tolist() for count in counts), strict=True)):
        a, b = (a, b) if a + b else (1, 1)
        torch.testing.assert_close(found[row], (a * one[row].double() + b * two[row].double()) / (a + b))


def test_regmean_of_one_and_of_what_is_no_linear_map_is_the_average() -> None:
    one, two = tensors(2)
    assert torch.equal(combined("regmean", [one], inputs=lambda: iter([taken(features(0))])), one.double())
    assert torch.equal(combined("regmean", [one, two]), combined("mean", [one, two]))


def test_regmean_where_one_member_alone_has_rows() -> None:
    one, two = tensors(2)
    longer = torch.cat([two, one[:3]])
    statistics = [taken(features(seed)) for seed in range(2)]
    found = combined("regmean", [one, longer], inputs=lambda: iter(statistics), size=4)
    assert torch.equal(found[7:], one[:3].double())
    torch.testing.assert_close(found[:7], combined("regmean", [one, two], inputs=lambda: iter(statistics)))


def test_regmean_of_maps_of_one_input_has_the_bits_of_each_alone() -> None:
    heights, passes = (530, 7, 64), [0]
    statistics = [taken(features(seed, 64, 48)) for seed in range(2)]
    maps = [tensors(2, (height, 48), seed) for seed, height in enumerate(heights)]

    def inputs() -> Iterator[PackedStatistics]:
        passes[0] += 1
        return map(stored, statistics)

    weights = [1.0, 2.0]
    given = [
        Combination(
            str(number),
            [blocks(m) for m in of],
            weights,
            inputs=inputs,
            products=products_with(of, statistics),
            input_weights=weights,
            options={"alpha": 1.0},
        )
        for number, of in enumerate(maps)
    ]
    alone = [torch.cat(list(TRUNKS["regmean"].combine(one))) for one in given]
    assert passes[0] == 3
    found: list[list[torch.Tensor]] = [[], [], []]
    for number, rows in regmean_together(given):
        found[number].append(rows)
    assert [len(torch.cat(rows)) for rows in found] == list(heights)
    assert all(torch.equal(torch.cat(rows), one) for rows, one in zip(found, alone, strict=True))
    assert passes[0] == 4  # Grams are summed once for all maps


@pytest.mark.parametrize("heights", [(7,), (512, 1), (100, 100, 900)])
def test_products_are_those_of_whole_tensors(heights: tuple[int, ...]) -> None:
    gram = taken(features(0, 64, 48)).gram
    parts = [tensors(1, (height, 48), seed)[0] for seed, height in enumerate(heights)]
    found = torch.cat(list(products(iter(parts), gram)))
    torch.testing.assert_close(found, torch.cat(parts).double() @ gram, rtol=1e-13, atol=0)


def test_regmean_without_any_token_has_no_solution() -> None:
    nothing = Statistics.zero(torch.zeros(5, dtype=torch.int16))
    with pytest.raises(ValueError, match="the summed Gram of its input is not positive definite"):
        combined("regmean", tensors(2), inputs=lambda: iter([nothing, nothing]))


@pytest.mark.parametrize("shape", [(7,), (31, 5), (9, 101), (3, 2, 7)])
@pytest.mark.parametrize("elements", [1, 16, 100])
def test_mean_by_tiles_is_that_of_whole_blocks(
    shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=draw).to(torch.bfloat16) for _ in range(3)]
    weights = [1.0, 0.3, 1.7]
    whole = combination_module.average(combination_module.RowBlock(0, tuple(tensors), None), weights)
    monkeypatch.setattr(combination_module, "TILE_ELEMENTS", elements)
    combination = Combination("x", [lambda t=t: iter([t]) for t in tensors], weights)  # type: ignore[misc]
    assert torch.equal(torch.cat(list(TRUNKS["mean"].combine(combination))), whole)
