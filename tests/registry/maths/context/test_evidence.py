"""Proves: thresholds are what text gives by chance, and experts whose texts look alike are compared with all others."""

import math

import pytest
import torch
from torch import Tensor

from registry.maths.context.evidence import CHANCE, SHARE, thresholds, token_evidence, token_shares
from registry.maths.context.prefix import FAST, context_scores, prefix_means

TOKENS, SLOW, ALARM = 64, 64.0, 32.0


def counts(*favourites: int, seed: int = 0) -> list[Tensor]:
    """Return counts of experts that use all tokens, and 16 from the given one on ten times as often."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for first in favourites:
        row = torch.randint(20, 60, (TOKENS,), generator=draw)
        row[first : first + 16] *= 10
        rows.append(row)
    return rows


def limits(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return thresholds and evidence."""
    evidence = token_evidence(rows)
    return thresholds(token_shares(rows), evidence, FAST), evidence


def scores(rows: list[Tensor], ids: Tensor) -> Tensor:
    """Return the scores of texts whose windows are exact."""
    found, evidence = limits(rows)
    past, keep = torch.arange(ids.shape[1], dtype=torch.float64), torch.ones_like(ids, dtype=torch.bool)
    slow, fast = (prefix_means(ids, keep, evidence, torch.exp(-past / tau)) for tau in (SLOW, FAST))
    return context_scores(slow, fast, found, ALARM)


def text(*firsts: int, length: int = 100) -> Tensor:
    """Return a text of the favourite tokens of one expert after another."""
    draw = torch.Generator().manual_seed(1)
    return torch.cat([first + torch.randint(0, 16, (1, length), generator=draw) for first in firsts], dim=1)


def test_thresholds_are_means_and_deviations_of_a_window() -> None:
    """Against their definition, one pair at a time."""
    rows = counts(0, 16, 20)
    found, evidence = limits(rows)
    shares, worth = token_shares(rows), (1 + math.exp(-1 / FAST)) / (1 - math.exp(-1 / FAST))

    def reach(of: int, values: Tensor) -> float:
        mean = float((shares[:, of] * values).sum())
        variance = float((shares[:, of] * (values - mean) ** 2).sum())
        return mean + CHANCE * math.sqrt(variance / worth)

    for e in range(3):
        own = float((shares[:, e] * evidence[:, e]).sum())
        for n in range(3):
            if e == n:
                expected = max(reach(j, evidence[:, e]) for j in range(3) if j != e)
            else:
                expected = max(reach(e, evidence[:, n] - evidence[:, e]), SHARE * own)
            assert float(found[e, n]) == pytest.approx(expected, rel=1e-9)


def test_thresholds_follow_the_order_of_the_experts() -> None:
    rows, order = counts(0, 16, 20, 40), [2, 0, 3, 1]
    found, _ = limits(rows)
    moved, _ = limits([rows[place] for place in order])
    assert torch.allclose(moved, found[order][:, order], rtol=1e-9)


def test_one_expert_has_a_threshold() -> None:
    found, _ = limits(counts(0))
    assert found.shape == (1, 1)
    assert bool(torch.isfinite(found).all())


def test_scores_are_those_of_one_expert_at_a_time() -> None:
    draw = torch.Generator().manual_seed(2)
    slow, fast = (torch.randn(2, 7, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    found = torch.rand(4, 4, generator=draw, dtype=torch.float64)
    expected = slow.clone()
    for e in range(4):
        expected[..., e] += ALARM * (fast[..., e] - found[e, e]).clamp(min=0)
        for n in {0, 1, 2, 3} - {e}:
            expected[..., e] -= ALARM * (fast[..., n] - fast[..., e] - found[e, n]).clamp(min=0)
    assert torch.allclose(context_scores(slow, fast, found, ALARM), expected, rtol=1e-12)
    alone = torch.full((4, 4), torch.inf, dtype=torch.float64).diagonal_scatter(found.diagonal())
    expected = slow + ALARM * (fast - found.diagonal()).clamp(min=0)
    assert torch.equal(context_scores(slow, fast, alone, ALARM), expected)


def test_experts_that_are_all_alike_are_left_to_the_slow_mean() -> None:
    one = counts(0)[0]
    found, evidence = limits([one, one.clone(), one.clone()])
    assert bool((evidence.abs() < 1e-12).all())
    assert bool((scores([one, one.clone(), one.clone()], text(0, 32)).abs() < 1e-9).all())
    assert bool((found.abs() < 1e-9).all())


def test_a_change_to_one_of_two_doubles_is_noticed_and_the_slow_mean_decides_between_them() -> None:
    double = counts(16)[0]
    other = double.clone()
    other[16:32] += torch.arange(16)  # nearly alike
    rows = [counts(48)[0], double, other]
    found, evidence = limits(rows)
    ids = text(48, 16)
    chosen = scores(rows, ids)[0].argmax(dim=-1)
    assert bool((chosen[20:100] == 0).all())
    assert bool((chosen[108:] != 0).all())
    past = torch.arange(200, dtype=torch.float64)
    keep = torch.ones_like(ids, dtype=torch.bool)
    slow, fast = (prefix_means(ids, keep, evidence, torch.exp(-past / tau)) for tau in (SLOW, FAST))
    assert torch.equal(slow[0, 108:, 1:].argmax(dim=-1) + 1, chosen[108:])
    only_for = torch.full_like(found, torch.inf).diagonal_scatter(found.diagonal())
    late = context_scores(slow, fast, only_for, ALARM)[0].argmax(dim=-1)
    assert bool((late[108:116] == 0).all())  # the test can fail: neither of them is ahead of the other
