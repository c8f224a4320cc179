"""Proves: every trunk method is exact where it can be, and a function of its inputs only."""

import pytest
import torch

from registry.maths.trunk import TRUNKS
from registry.maths.trunk.base import base
from registry.maths.trunk.mean import mean

BITS = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
FINITE = BITS[torch.isfinite(BITS)]


def test_mean_of_one_and_of_equal_members_is_exact_for_every_bfloat16() -> None:
    for count in (1, 2, 3, 5, 7):
        assert torch.equal(mean([FINITE] * count).to(torch.bfloat16), FINITE)


def test_mean_is_the_average_in_float64() -> None:
    members = [torch.empty(50, 3).normal_(generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    assert torch.allclose(mean(members), torch.stack(members).double().mean(0), rtol=1e-15, atol=0)


def test_base_is_the_base() -> None:
    assert torch.equal(base([], FINITE), FINITE)
    with pytest.raises(ValueError, match="needs the base model"):
        base([FINITE], None)


def test_table_says_who_takes_part() -> None:
    assert {name: (method.needs_members, method.needs_base) for name, method in TRUNKS.items()} == {
        "mean": (True, False),
        "base": (False, True),
    }
