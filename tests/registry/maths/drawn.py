"""Random numbers for tests of mathematics, computations with other numbers of threads, and those that are refused."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from registry.maths.router import gates
from registry.maths.statistics import PackedStatistics, Statistics, gram_sum

T = TypeVar("T")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal numbers that follow from the seed."""
    return torch.empty(shape, dtype=dtype).normal_(generator=torch.Generator().manual_seed(seed))


def with_threads(compute: Callable[[], T], *numbers: int) -> list[T]:
    """Return what an action gives on 1, 2 and 4 threads, or on so many; it leaves their number as it is."""
    before, found = torch.get_num_threads(), []
    try:
        for number in numbers or (1, 2, 4):
            torch.set_num_threads(number)
            found.append(compute())
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)
    return found


def refused(message: str, compute: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Check that a function refuses arguments with a message that matches."""
    with pytest.raises(ValueError, match=message):
        compute(*arguments, **options)


def ridge(statistics: Iterable[Statistics], weights: Sequence[float], lam: float, normalize: bool = True) -> Tensor:
    """Return the router of the members' statistics, as `Ridge` solves it."""
    return gates.ridge(gram_sum(map(packed, statistics), weights), lam, normalize)


def packed(statistics: Statistics) -> PackedStatistics:
    """Return statistics as they are stored."""
    return PackedStatistics(statistics.packed(), statistics.exponents, statistics.saturated)
