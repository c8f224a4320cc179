"""Proves: the change that a low-rank adapter makes is that of the papers, in float32."""

import math
from functools import partial

import pytest
import torch

from registry.maths.lora import dora_weight, lora_delta, lora_scaling
from tests.registry.maths.drawn import normal

drawn = partial(normal, dtype=torch.float32)


def test_scaling_is_alpha_by_rank_or_by_its_root() -> None:
    assert lora_scaling(32.0, 16, stabilised=False) == 2
    assert lora_scaling(32.0, 16, stabilised=True) == 8
    assert lora_scaling(1.0, 3, stabilised=True) == 1 / math.sqrt(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_delta_is_the_scaled_product_in_float32(dtype: torch.dtype) -> None:
    a, b = drawn(3, 7, seed=1).to(dtype), drawn(5, 3, seed=2).to(dtype)
    delta = lora_delta(a, b, 0.75)
    assert delta.dtype == torch.float32
    expected = [[0.75 * sum(float(b[o, k]) * float(a[k, i]) for k in range(3)) for i in range(7)] for o in range(5)]
    assert torch.allclose(delta.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-7)


def test_weights_of_each_output_get_its_magnitude_and_keep_their_direction() -> None:
    weight, delta, magnitude = drawn(5, 7, seed=1), drawn(5, 7, seed=2), drawn(5, seed=3).abs()
    merged = dora_weight(weight, delta, magnitude)
    assert torch.allclose(merged.norm(dim=1), magnitude)
    assert torch.allclose(torch.cosine_similarity(merged, weight + delta, dim=1), torch.ones(5))


def test_magnitude_of_the_base_and_no_delta_leave_the_weights() -> None:
    weight = drawn(5, 7, seed=1).bfloat16()
    merged = dora_weight(weight, torch.zeros(5, 7), weight.float().norm(dim=1))
    assert merged.dtype == torch.float32
    assert torch.equal(merged.bfloat16(), weight)


def test_weights_that_cancel_have_no_direction() -> None:
    weight = drawn(2, 3, seed=1)
    assert not bool(torch.isfinite(dora_weight(weight, -weight, torch.ones(2))).any())
