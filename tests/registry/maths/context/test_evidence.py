"""Proves: thresholds are what text gives by chance, and experts whose texts look alike are compared with all others.

The predicted choice by context is the share of drawn texts, and what texts have in common bounds it.
"""

import math

import pytest
import torch
from torch import Tensor

from registry.maths.context import evidence as evidence_module
from registry.maths.context.evidence import (
    CHANCE,
    FEW,
    FLOOR,
    FOLLOWED,
    LEAST,
    SHARE,
    SMOOTHING,
    EvidenceMoments,
    pair_evidence,
    thresholds,
    token_evidence,
    token_shares,
)
from registry.maths.context.prefix import FAST, context_scores, prefix_means

TOKENS, SLOW, ALARM = 64, 64.0, 32.0
WORDS, EXPERTS, TEXTS = 60, 3, 4000
WINDOWS = {"whole": torch.ones(64), "recent": torch.exp(-torch.arange(64) / 12)}


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
    shares = token_shares(rows)
    evidence = token_evidence(shares)
    return thresholds(shares, evidence, FAST), evidence


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


@pytest.mark.parametrize("count", [1, 3])
def test_one_expert_and_experts_that_are_all_alike_are_left_to_the_slow_mean(count: int) -> None:
    rows = [counts(0)[0].clone() for _ in range(count)]
    found, evidence = limits(rows)
    assert found.shape == (count, count)
    assert bool((evidence.abs() < 1e-12).all())
    assert bool((scores(rows, text(0, 32)).abs() < 1e-9).all())
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


def test_tokens_that_a_text_could_not_show_have_a_part_of_the_mean_share_of_others() -> None:
    rows = [torch.tensor([7, 1, 0, 0]), torch.tensor([2, 2, 4, 0]), torch.tensor([0, 4, 2, 2])]
    shares = token_shares(rows, [0], {1, 2, 9})
    raised = torch.tensor([7 / 8, LEAST * 3 / 8, LEAST * 3 / 8, 0.0], dtype=torch.float64)
    assert torch.equal(shares[:, 0], raised / raised.sum())
    assert torch.equal(shares[:, 1:], token_shares(rows)[:, 1:])
    more = token_shares(rows, [1], {2})  # it has more of these already
    assert torch.equal(more, token_shares(rows))
    alike = token_shares(rows, [0, 1, 2], {3})
    assert bool((alike[3] > 0).all())
    assert torch.allclose(alike.sum(dim=0), torch.ones(3, dtype=torch.float64))
    alone = token_shares([torch.tensor([4, 0]), torch.tensor([1, 3])], [0], {0, 1})  # it counted nothing else
    assert bool((alone > 0).all())


def test_pairs_add_what_their_share_adds_to_that_of_the_second_token() -> None:
    """Against the definition, entry by entry: one expert lacks a pair, one token is neutral, one is not known."""
    rows = [torch.tensor([4, 3, 2, 1]), torch.tensor([1, 2, 3, 4])]
    pairs = [
        torch.tensor([[0, 1, 3], [1, 2, 2], [3, 1, 2]], dtype=torch.int32),
        torch.tensor([[1, 2, 5], [2, 9, 2]], dtype=torch.int32),
    ]
    shares = token_shares(rows)
    keys, owners, values = pair_evidence(shares, pairs, [10, 10], {3})
    assert keys.tolist() == [1, 6, 6]
    assert owners.tolist() == [0, 0, 1]
    mean = shares.mean(dim=1)
    for key, owner, value, count in zip(keys.tolist(), owners.tolist(), values.tolist(), (3, 2, 5), strict=True):
        alone = float(shares[key % 4, owner] + SMOOTHING * mean[key % 4] + FLOOR / 4)
        assert value == pytest.approx(math.log(alone + FOLLOWED * count / (10 + FEW)) - math.log(alone), rel=1e-12)


def experts() -> tuple[Tensor, Tensor]:
    """Return p_e and ℓ of experts whose texts differ a little."""
    generator = torch.Generator().manual_seed(3)
    draws = torch.rand((WORDS, EXPERTS), generator=generator, dtype=torch.float64) + 0.5
    counts = [(column * 100).long() for column in draws.T]
    shares = torch.stack([each.double() / each.sum() for each in counts], dim=1)
    return shares, token_evidence(shares)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [16, 64])
def test_independent_tokens_go_where_predicted(window: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "ALIKE", 0.0)
    shares, evidence = experts()
    weights = WINDOWS[window][:length].double()
    predicted = EvidenceMoments.of(shares, evidence).confusion(weights)
    generator = torch.Generator().manual_seed(4)
    for expert in range(EXPERTS):
        ids = torch.multinomial(shares[:, expert], TEXTS * length, replacement=True, generator=generator)
        means = prefix_means(ids.view(TEXTS, length), torch.ones(TEXTS, length, dtype=torch.bool), evidence, weights)
        counted = torch.bincount(means[:, -1].argmax(dim=-1), minlength=EXPERTS) / TEXTS
        assert torch.allclose(predicted[expert], counted.double(), atol=0.03)


def test_subject_of_a_text_bounds_what_more_of_it_tells() -> None:
    shares, evidence = experts()
    moments = EvidenceMoments.of(shares, evidence)
    lengths = [2**power for power in range(13)]
    accuracy = [float(moments.confusion(torch.ones(length)).diag().mean()) for length in lengths]
    assert accuracy == sorted(accuracy)
    assert accuracy[-1] < 0.95
    assert accuracy[-1] - accuracy[-3] < 0.01
    assert torch.allclose(moments.confusion(torch.ones(8)).sum(dim=1), torch.ones(EXPERTS, dtype=torch.float64))


def test_experts_are_mistaken_as_the_confusion_says_in_any_order() -> None:
    (shares, evidence), weights, order = experts(), torch.ones(8), [2, 0, 1]

    def moments(*of: int) -> EvidenceMoments:
        return EvidenceMoments.of(shares[:, list(of)], evidence[:, list(of)])

    confusion, alike = moments(0, 1).confusion(weights), moments(0, 0)
    assert moments(0, 1).mistaken(0, 1, weights) == pytest.approx(float(confusion[0, 1]), abs=1e-9)
    assert moments(0, 1).mistaken(1, 0, weights) == pytest.approx(float(confusion[1, 0]), abs=1e-9)
    assert alike.mistaken(0, 1, weights[:4]) == 0.5
    assert torch.equal(alike.confusion(weights[:4]), torch.full((2, 2), 0.5, dtype=torch.float64))
    expected = moments(0, 1, 2).confusion(weights)[order][:, order]
    assert torch.allclose(moments(*order).confusion(weights), expected, atol=1e-3)
