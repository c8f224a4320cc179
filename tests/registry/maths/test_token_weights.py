"""Proves: a token weighs what the expert gains on it, on a grid of integers, within its floor and cap."""

import pytest
import torch

from registry.maths.token_weights import advantage_weights
from tests.registry.maths.drawn import refused


def test_gain_becomes_sixteenths_of_a_nat() -> None:
    base = torch.tensor([3.0, 3.0, 3.0, 3.0, 3.0, 9.0, 3.0])
    expert = torch.tensor([2.0, 3.0, 5.0, 2.9375, 2.97, 0.5, 2.84375])
    # half to even: 2.5 sixteenths are 2
    assert advantage_weights(base, expert).tolist() == [16, 1, 1, 1, 1, 64, 2]
    assert advantage_weights(base, expert, floor=0).tolist() == [16, 0, 0, 1, 0, 64, 2]


def test_step_cap_and_floor() -> None:
    base, expert = torch.tensor([4.0, 4.0, 4.0]), torch.tensor([3.0, 1.0, 4.0])
    weights = advantage_weights(base, expert, step=0.5, cap=2.0, floor=2)
    assert weights.tolist() == [2, 4, 2]
    assert weights.dtype == torch.int64


@pytest.mark.parametrize(
    ("step", "cap", "floor"),
    [(0.0, 4.0, 1), (-1.0, 4.0, 1), (1 / 64, 4.0, 1), (0.5, 0.25, 0), (0.5, 2.0, 5), (0.5, 2.0, -1), (1.0, 1e9, 1)],
)
def test_what_cannot_be_is_refused(step: float, cap: float, floor: int) -> None:
    loss = torch.ones(2)
    refused("must be", advantage_weights, loss, loss, step=step, cap=cap, floor=floor)
    for bad in (torch.nan, torch.inf):
        refused("NaN or infinite", advantage_weights, torch.tensor([1.0, bad]), loss)
