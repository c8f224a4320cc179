"""Proves: statistics are exact, add up, and do not depend on how tokens are split, ordered or merged."""

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.maths.fixed_point import exponents_for, norm_bound, quantise
from registry.maths.statistics import PackedStatistics, Statistics
from tests.registry.maths.drawn import refused

HIDDEN = 12
WEIGHT = torch.linspace(0.25, 3.0, HIDDEN)
EXPONENTS = exponents_for(norm_bound(WEIGHT))


def activations(seed: int, tokens: int) -> torch.Tensor:
    """Return the output of an RMSNorm with weight WEIGHT on random input."""
    x = torch.empty(tokens, HIDDEN).normal_(generator=torch.Generator().manual_seed(seed))
    return WEIGHT * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))


def of(seed: int = 0, tokens: int = 20) -> Statistics:
    return Statistics.of(activations(seed, tokens), EXPONENTS)


@pytest.mark.parametrize("bits", [16, 20])
def test_real_values_equal_a_float64_reference_to_the_resolution_of_the_integers(bits: int) -> None:
    x, bound = activations(2, 300), norm_bound(WEIGHT)
    exponents = exponents_for(bound, bits)
    taken, unit = Statistics.of(x, exponents, bits=bits), torch.exp2(-exponents.double())
    # Each factor is off by half a unit at most and below its bound.
    allowed = 300 * 0.5 * (unit[:, None] * bound[None, :] + bound[:, None] * unit[None, :])
    assert taken.saturated == 0
    assert ((taken.gram - x.double().T @ x.double()).abs() <= allowed).all()
    assert ((taken.moment - x.double().sum(0)).abs() <= 300 * 0.5 * unit).all()
    assert taken.count == 300


@given(st.integers(0, 2**31), st.lists(st.integers(0, 40), max_size=6), st.randoms(use_true_random=False))
def test_any_split_order_and_merge_gives_equal_statistics(seed: int, cuts: list[int], draw: object) -> None:
    x = activations(seed, 40)
    whole = Statistics.of(x, EXPONENTS)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    parts = [Statistics.of(part, EXPONENTS) for part in torch.tensor_split(x[order], sorted(cuts))]
    draw.shuffle(parts)  # type: ignore[attr-defined]
    while len(parts) > 1:  # merge in a random tree
        left = parts.pop(draw.randrange(len(parts)))  # type: ignore[attr-defined]
        right = parts.pop(draw.randrange(len(parts)))  # type: ignore[attr-defined]
        parts.append(left + right)
    assert parts[0] == whole


def test_statistics_add_up() -> None:
    a, b = of(4), of(5)
    zero = Statistics.zero(EXPONENTS)
    assert a + zero == a
    assert a + b == b + a
    assert a != b
    assert a != "statistics"


def test_padding_does_not_count_whatever_it_holds() -> None:
    x = activations(6, 10)
    keep = torch.tensor([True, False] * 5)
    x[1] = float("nan")
    assert Statistics.of(x, EXPONENTS, keep) == Statistics.of(x[::2], EXPONENTS)
    assert Statistics.of(x, EXPONENTS, torch.zeros(10, dtype=torch.bool)) == Statistics.zero(EXPONENTS)


def test_packing_is_reversible_and_half_the_size() -> None:
    taken = of(7)
    packed = taken.packed()
    assert packed.numel() == (HIDDEN + 1) * (HIDDEN + 2) // 2
    assert PackedStatistics(packed, EXPONENTS).unpacked() == taken
    refused("do not go with 12 channels", PackedStatistics, packed[1:], EXPONENTS)


def test_saturation_is_counted_and_part_of_equality() -> None:
    x = torch.full((3, HIDDEN), 1e6)
    taken = Statistics.of(x, EXPONENTS)
    assert taken.saturated == 3 * HIDDEN
    assert (taken + taken).saturated == 6 * HIDDEN
    assert Statistics(taken.matrix, EXPONENTS) != taken


def test_sums_that_leave_64_bits_and_what_cannot_be_are_refused() -> None:
    matrix = torch.zeros(HIDDEN + 1, HIDDEN + 1, dtype=torch.int64)
    matrix[-1, -1], matrix[0, 0] = 2**40, 2**61
    half = Statistics(matrix, EXPONENTS)
    refused("2,199,023,255,552 tokens are too many", operator.add, half, half)
    refused("taken on different weights", operator.add, of(), Statistics.zero(EXPONENTS + 1))
    refused("does not go with 12 channels", Statistics, torch.zeros(3, 3, dtype=torch.int64), EXPONENTS)


@given(st.integers(0, 2**31), st.sampled_from([16, 20]), st.integers(1, 12))
def test_statistics_are_exact(seed: int, bits: int, tokens: int) -> None:
    exponents = exponents_for(norm_bound(WEIGHT), bits)
    x = activations(seed, tokens)
    taken = Statistics.of(x, exponents, bits=bits)
    rows = [[*map(int, row), 1] for row in quantise(x, exponents, bits)[0].tolist()]
    size = range(HIDDEN + 1)
    assert taken.matrix.tolist() == [[sum(row[i] * row[j] for row in rows) for j in size] for i in size]
    assert taken.count == tokens
    cut = seed % tokens
    assert taken == Statistics.of(x[:cut], exponents, bits=bits) + Statistics.of(x[cut:], exponents, bits=bits)


@pytest.mark.parametrize(("bits", "tokens"), [(16, 40_000), (20, 1_000)])
def test_largest_products_stay_exact_in_float64(bits: int, tokens: int) -> None:
    exponents, most = torch.zeros(2, dtype=torch.int16), 2 ** (bits - 1) - 1
    x = torch.tensor([[float(most), -float(most)]]).expand(tokens, 2)
    square, found = tokens * most**2, Statistics.of(x, exponents, bits=bits)
    assert found.matrix[:2, :2].tolist() == [[square, -square], [-square, square]]
