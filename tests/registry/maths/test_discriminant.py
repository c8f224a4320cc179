"""Proves: the direction of two texts is that of a ridge regression on their tokens, and it tells them apart."""

import pytest
import torch
from torch import Tensor

from registry.maths.discriminant import discriminant
from registry.maths.statistics import PackedStatistics, Statistics

HIDDEN = 12
SCALES = torch.full((HIDDEN,), 10, dtype=torch.int16)


def tokens(seed: int, count: int) -> Tensor:
    """Return tokens that are on the grid of the scales."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, HIDDEN, generator=draw) + torch.randn(HIDDEN, generator=draw)
    return torch.round(x * 2**10) / 2**10


@pytest.mark.parametrize("lam", [0.0, 0.01, 100.0])
def test_it_is_a_ridge_regression(lam: float) -> None:
    own, other = tokens(1, 200), tokens(2, 500)
    found = discriminant(Statistics.of(own, SCALES), Statistics.of(other, SCALES), lam)
    x = torch.cat([own, other, lam**0.5 * torch.eye(HIDDEN)]).double()
    y = torch.tensor([1 / 200] * 200 + [-1 / 500] * 500 + [0.0] * HIDDEN, dtype=torch.float64)
    assert torch.allclose(found, torch.linalg.lstsq(x, y[:, None]).solution[:, 0], rtol=1e-9, atol=1e-12)


def test_it_tells_unseen_tokens_apart() -> None:
    own, other = tokens(1, 300), tokens(2, 300)
    w = discriminant(Statistics.of(own[:200], SCALES), Statistics.of(other[:200], SCALES), 0.01)
    assert ((own[200:].double() @ w)[:, None] > other[200:].double() @ w).double().mean() > 0.95
    back = discriminant(Statistics.of(other[:200], SCALES), Statistics.of(own[:200], SCALES), 0.01)
    assert torch.allclose(back, -w, rtol=1e-12, atol=1e-15)


def test_statistics_as_stored_give_the_same_bits() -> None:
    own, other = (Statistics.of(tokens(seed, 100), SCALES) for seed in (1, 2))
    stored = PackedStatistics(own.packed(), own.exponents, own.saturated)
    before = own.gram
    assert torch.equal(discriminant(stored, other, 0.1), discriminant(own, other, 0.1))
    assert torch.equal(own.gram, before)


def test_what_has_no_mean_is_refused() -> None:
    full, empty = Statistics.of(tokens(1, 50), SCALES), Statistics.zero(SCALES)
    for pair in ((full, empty), (empty, full)):
        with pytest.raises(ValueError, match="without tokens has no mean"):
            discriminant(*pair, 0.1)
    one = Statistics.of(tokens(1, 1), SCALES)
    with pytest.raises(ValueError, match="not positive definite"):
        discriminant(one, one, 0.0)
