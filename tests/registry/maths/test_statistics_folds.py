"""Proves: the last fold is exactly what the others leave."""

import torch

from registry.maths.statistics import Statistics, complete_folds

EXPONENTS = torch.full((4,), 8, dtype=torch.int16)


def of(seed: int) -> Statistics:
    return Statistics.of(torch.randn(9, 4, generator=torch.Generator().manual_seed(seed)), EXPONENTS)


def test_last_fold_is_what_the_others_leave() -> None:
    parts = (of(0), of(1), of(2))
    assert complete_folds(parts[0] + parts[1] + parts[2], parts[:2]) == parts


def test_without_folds_the_whole_is_one() -> None:
    assert complete_folds(of(0), ()) == (of(0),)
