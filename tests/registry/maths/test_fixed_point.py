"""Proves: scales are the largest that bounds allow, no RMSNorm output saturates, quantising errs by half a unit."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from registry.maths.fixed_point import EXPONENT_LIMIT, exponents_for, limit, norm_bound, power_of_two, quantise


@given(st.lists(st.floats(1e-20, 1e20), min_size=1, max_size=20))
@example([32767.0, 32767.5, 32768.0, 1.0, 2.0**-3])  # powers of two, and the limit
def test_scale_is_the_largest_that_fits(bounds: list[float]) -> None:
    for bound, p in zip(bounds, exponents_for(torch.tensor(bounds, dtype=torch.float64)).tolist(), strict=True):
        assert math.ldexp(bound, p) <= limit(16)
        assert math.ldexp(bound, p + 1) > limit(16)


def test_zero_bound_gets_the_upper_limit_and_huge_ones_the_lower() -> None:
    found = exponents_for(torch.tensor([0.0, 1e-300, 1e300], dtype=torch.float64))
    assert found.tolist() == [EXPONENT_LIMIT, EXPONENT_LIMIT, -EXPONENT_LIMIT]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bounds_and_activations_that_cannot_be_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="negative or not finite"):
        exponents_for(torch.tensor([1.0, bad]))
    if bad != -1.0:
        with pytest.raises(ValueError, match="NaN or infinite"):
            quantise(torch.tensor([[bad]]), torch.zeros(1, dtype=torch.int16))


def test_powers_of_two_are_exact() -> None:
    p = torch.arange(-300, 301, dtype=torch.int16)
    assert power_of_two(p).tolist() == [math.ldexp(1.0, k) for k in range(-300, 301)]


@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_no_rms_norm_output_saturates(seed: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(seed)
    hidden = 48
    weight = torch.empty(hidden).uniform_(-3, 3, generator=draw).to(dtype)
    x = torch.empty(16, hidden).normal_(generator=draw)
    x[0] = 0
    x[0, 7] = 1e4  # one channel carries all: the case in which the bound is reached
    normed = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))).to(dtype)
    y = weight * normed
    exponents = exponents_for(norm_bound(weight))
    q, saturated = quantise(y, exponents)
    assert not saturated.any()
    error = (q.double() * power_of_two(-exponents) - y.double()).abs()
    assert (error <= 0.5 * power_of_two(-exponents)).all()
    assert q[0, 7].abs() > limit(16) / 2.1  # the scale wastes no bit beyond the power of two and the margin


def test_what_exceeds_the_bound_is_held_and_told() -> None:
    exponents = torch.zeros(2, dtype=torch.int16)
    q, saturated = quantise(torch.tensor([[40000.0, -3.5], [-40000.0, 32767.0]]), exponents)
    assert q.tolist() == [[limit(16), -4.0], [-limit(16), limit(16)]]
    assert saturated.tolist() == [[True, False], [True, False]]


def test_float64_activations_keep_their_precision() -> None:
    q, _ = quantise(torch.tensor([[1.0 + 2.0**-40]], dtype=torch.float64), torch.tensor([1], dtype=torch.int16))
    assert q.dtype == torch.float64
    assert q.item() == 2.0
