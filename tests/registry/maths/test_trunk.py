"""Proves: each trunk method equals an independent float64 reference, whatever the blocks its tensors come in."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from registry.composition.found import TRUNKS
from registry.composition.recipe.fields import options_of
from registry.maths.fixed_point import exponents_for
from registry.maths.statistics import PackedStatistics, Statistics
from registry.maths.trunk import combination as combination_module
from registry.maths.trunk.combination import Combination, Rows
from registry.maths.trunk.regmean import RIDGE, products, regression_means
from registry.maths.trunk.task_vectors import kept
from tests.registry.maths.drawn import normal, packed

DIGESTS = ["a" * 64, "b" * 64, "c" * 64]


def tensors(count: int = 4, shape: tuple[int, ...] = (7, 5), seed: int = 0) -> list[Tensor]:
    return list(normal(count, *shape, seed=seed).bfloat16())


def blocks(tensor: Tensor, size: int = 100) -> Callable[[], Iterator[Tensor]]:
    return lambda: iter(tensor.split(size))


def combination(method: str, members: Sequence[Tensor], **changes: Any) -> Combination:
    """Return the inputs of a method; `statistics`, one a member, are given as they are stored and as products."""
    size, base, statistics = changes.pop("size", 100), changes.pop("base", None), changes.pop("statistics", None)
    weights = changes.setdefault("weights", [1.0] * len(members))
    if statistics is not None:
        changes |= {"inputs": lambda: map(packed, statistics), "products": products_with(members, statistics)}
    return Combination(
        "w",
        [blocks(member, size + number) for number, member in enumerate(members)],
        base=None if base is None else blocks(base, size),
        digests=DIGESTS[: len(members)],
        input_weights=weights,
        options=options_of(method) | changes.pop("options", {}),
        **changes,
    )


def combined(method: str, members: Sequence[Tensor], **changes: Any) -> Tensor:
    parts = TRUNKS[method].combine(combination(method, members, **changes))
    return torch.cat([part.double() for part in parts])


def products_with(members: Sequence[Tensor], statistics: Sequence[Statistics]) -> list[Rows]:
    """The rows of each member's W_e G_e, from a plain product."""
    whole = [member.double() @ taken.gram for member, taken in zip(members, statistics, strict=True)]
    return [partial(lambda product, start, stop: product[start:stop], product) for product in whole]


def test_mean_of_one_is_itself_and_of_several_the_weighted_average_and_base_is_the_base_models() -> None:
    one, two, three, base = tensors()
    assert torch.equal(combined("mean", [one]), one.double())
    expected = (one.double() + two.double() + three.double()) / 3
    assert torch.equal(combined("mean", [one, two, three]), expected)
    weighted = combined("mean", [one, two], weights=[3.0, 1.0])
    assert torch.equal(weighted, (3 * one.double() + two.double()) / 4)
    assert torch.equal(combined("base", [], base=base), base.double())
    rows = combined("base", [torch.cat([one, two[:2]])], base=base, size=3)
    assert torch.equal(rows, torch.cat([base, two[:2]]).double())


def ties(tasks: list[Tensor], share: list[float], density: float, summed: bool) -> Tensor:
    """The mean, or sum, of what stays of τ_e and agrees in sign (Yadav et al. 2023, §3; MergeME §3.1.2)."""
    number, trimmed = max(1, round(density * tasks[0].numel())), []
    for task, weight in zip(tasks, share, strict=True):
        least = task.abs().flatten().sort(descending=True).values[number - 1]
        trimmed.append(torch.where(task.abs() >= least, task, 0.0) * weight)
    elected, total, used = torch.stack(trimmed).sum(0).sign(), torch.zeros_like(tasks[0]), torch.zeros_like(tasks[0])
    for task, weight in zip(trimmed, share, strict=True):
        agrees = (task.sign() == elected) & (task != 0)
        total, used = total + task * agrees, used + weight * agrees.double()
    return total if summed else torch.where(used > 0, total / used, 0.0)


def dare(tasks: list[Tensor], share: list[float], density: float, summed: bool) -> Tensor:
    """The mean, or sum, of m_e ∘ τ_e / d (Yu et al. 2024, §3.2; MergeME §3.1.2)."""
    merged = torch.zeros_like(tasks[0])
    for digest, task, weight in zip(DIGESTS, tasks, share, strict=True):
        mask = torch.cat([kept(digest, "w", row, torch.Size((1, 5)), density) for row in range(7)])
        merged += mask * task / density * weight
    return merged if summed else merged / len(tasks)


@pytest.mark.check
@pytest.mark.parametrize("reference", [ties, dare])
@given(
    density=st.floats(0.05, 1.0),
    scale=st.floats(-2, 2),
    seed=st.integers(0, 99),
    size=st.integers(1, 9),
    weights=st.tuples(*[st.sampled_from([1.0, 1.0, 0.5, 3.0])] * 3),
    summed=st.booleans(),
)
def test_ties_and_dare_equal_a_reference(
    reference: Any, density: float, scale: float, seed: int, size: int, weights: tuple[float, ...], summed: bool
) -> None:
    """θ_0 + λ times what is made of the task vectors τ_e = θ_e − θ_0, the weights scaled to a mean of 1."""
    *members, base = tensors(seed=seed)
    tasks, share = [member.double() - base.double() for member in members], [w / (sum(weights) / 3) for w in weights]
    expected = base.double() + scale * reference(tasks, share, density, summed)
    changes: dict[str, Any] = {"weights": list(weights), "options": {"density": density, "scale": scale}}
    found = combined(reference.__name__, members, base=base, size=size, summed=summed, **changes)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def test_dares_mask_keeps_its_share_and_follows_from_the_digest() -> None:
    mask = kept(DIGESTS[0], "w", 0, torch.Size((200, 500)), 0.8)
    assert abs(float(mask.double().mean()) - 0.8) < 0.005
    assert torch.equal(mask[3:5], kept(DIGESTS[0], "w", 3, torch.Size((2, 500)), 0.8))
    assert not torch.equal(mask, kept(DIGESTS[1], "w", 0, torch.Size((200, 500)), 0.8))
    assert kept(DIGESTS[0], "w", 0, torch.Size((4,)), 1.0).all()  # a norm's weight has one axis


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_task_arithmetic_and_coefficients_equal_a_reference(dtype: torch.dtype) -> None:
    """θ(α) = θ_0 + Σ_e α_e (θ_e − θ_0), Soup-of-Experts, eq. 2, in plain loops; α = 1 for one member alone is it."""
    *members, base = (tensor.to(dtype) for tensor in tensors())
    coefficients = [0.7, -1.3, 0.0]
    found = combined("task-arithmetic", members, base=base, size=2, coefficients=coefficients)
    for row, column in itertools.product(range(base.shape[0]), range(base.shape[1])):
        start = float(base[row, column])
        expected = start
        for coefficient, member in zip(coefficients, members, strict=True):
            expected += coefficient * (float(member[row, column]) - start)
        assert float(found[row, column]) == pytest.approx(expected, rel=1e-14, abs=1e-14)
    plain = base.double() + 0.4 * sum(member.double() - base.double() for member in members)
    found = combined("task-arithmetic", members, base=base, size=2, options={"scale": 0.4})
    torch.testing.assert_close(found, plain, rtol=1e-14, atol=1e-14)
    for number, member in enumerate(members):
        only = [float(number == other) for other in range(len(members))]
        assert torch.equal(combined("task-arithmetic", members, base=base, coefficients=only).to(dtype), member)


def test_rows_that_the_base_model_lacks_have_no_coefficient() -> None:
    first, second, base = tensors(3)
    found = combined("task-arithmetic", [first, second], base=base[:4], coefficients=[2.0, -1.0])
    assert torch.equal(found[4:], (first[4:].double() + second[4:].double()) / 2)
    shorter = combined("task-arithmetic", [first, second[:4]], base=base, coefficients=[2.0, -1.0])
    assert torch.equal(shorter[4:], (first[4:].double() - base[4:].double()) * 2 + base[4:].double())


def features(seed: int, tokens: int = 64, width: int = 5) -> Tensor:
    return normal(tokens, width, seed=seed) @ normal(width, width, seed=seed + 100)


def taken(x: Tensor) -> Statistics:
    return Statistics.of(x, exponents_for(x.abs().amax(0) * 1.1, 20), bits=20)


def exact(x: Tensor, statistics: Statistics) -> Tensor:
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
    found = combined("regmean", members, size=size, statistics=statistics, weights=weights)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_regmean_at_alpha_0_weighs_channels_alone() -> None:
    members, statistics = tensors(2), [taken(features(seed)) for seed in range(2)]
    diagonals = [of.gram.diagonal() for of in statistics]
    ridge = RIDGE * float(sum(diagonals).mean())  # type: ignore[union-attr]
    average = (members[0].double() + members[1].double()) / 2
    expected = sum(m.double() * d for m, d in zip(members, diagonals, strict=True)) + ridge * average
    found = combined("regmean", members, statistics=statistics, options={"alpha": 0.0})
    torch.testing.assert_close(found, expected / (sum(diagonals) + ridge), rtol=1e-12, atol=1e-12)


def test_regmean_weighs_an_embeddings_rows_by_their_use() -> None:
    one, two = tensors(2)
    counts = [torch.tensor([3, 0, 1, 0, 0, 0, 2]), torch.tensor([1, 0, 1, 5, 0, 0, 0])]
    found = combined("regmean", [one, two], counts=counts, size=2)
    for row, (a, b) in enumerate(zip(*(count.tolist() for count in counts), strict=True)):
        a, b = (a, b) if a + b else (1, 1)
        torch.testing.assert_close(found[row], (a * one[row].double() + b * two[row].double()) / (a + b))


def test_regmean_of_one_and_of_what_is_no_linear_map_is_the_average_and_of_nothing_there_is_none() -> None:
    (one, two), nothing = tensors(2), [Statistics.zero(torch.zeros(5, dtype=torch.int16))] * 2
    assert torch.equal(combined("regmean", [one], statistics=[taken(features(0))]), one.double())
    assert torch.equal(combined("regmean", [one, two]), combined("mean", [one, two]))
    with pytest.raises(ValueError, match="the summed Gram of its input is not positive definite"):
        combined("regmean", [one, two], statistics=nothing)


def test_regmean_where_one_member_alone_has_rows() -> None:
    one, two = tensors(2)
    longer = torch.cat([two, one[:3]])
    statistics = [taken(features(seed)) for seed in range(2)]
    found = combined("regmean", [one, longer], statistics=statistics, size=4)
    assert torch.equal(found[7:], one[:3].double())
    torch.testing.assert_close(found[:7], combined("regmean", [one, two], statistics=statistics))


def test_regmean_of_maps_of_one_input_has_the_bits_of_each_alone() -> None:
    heights, passes = (530, 7, 64), [0]
    statistics = [taken(features(seed, 64, 48)) for seed in range(2)]

    def inputs() -> Iterator[PackedStatistics]:
        passes[0] += 1
        return map(packed, statistics)

    given = [
        replace(combination("regmean", of, statistics=statistics, weights=[1.0, 2.0]), inputs=inputs)
        for of in (tensors(2, (height, 48), seed) for seed, height in enumerate(heights))
    ]
    alone = [torch.cat(list(TRUNKS["regmean"].combine(one))) for one in given]
    assert passes[0] == 3
    found: list[list[Tensor]] = [[], [], []]
    for number, rows in regression_means(given):
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


@pytest.mark.parametrize("shape", [(7,), (31, 5), (9, 101), (3, 2, 7)])
@pytest.mark.parametrize("elements", [1, 16, 100])
def test_mean_by_tiles_is_the_whole_mean(
    shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, weights = tensors(3, shape), [1.0, 0.3, 1.7]
    whole = combination_module.average(combination_module.RowBlock(0, tuple(members), None), weights)
    monkeypatch.setattr(combination_module, "TILE_ELEMENTS", elements)
    assert torch.equal(combined("mean", members, weights=weights), whole.double())
