"""Intervals of scores: coverage, pairing, and where there is none."""

import math
from dataclasses import replace

import pytest
import torch

from registry.evaluation.intervals import difference_interval, score_intervals
from registry.evaluation.results import MOST_BLOCKS, DomainLoss, losses_in, stored_losses

WINDOWS = 48
TOKENS = 255


def losses(each: torch.Tensor, tokens: int = TOKENS) -> DomainLoss:
    """Return windows of equal length with these mean losses."""
    return DomainLoss(tuple((each.double() * tokens).tolist()), (tokens,) * len(each))


def paired(model: DomainLoss, own: DomainLoss) -> DomainLoss:
    """Return a model's losses with those of the domain's own expert."""
    return replace(model, own=own.nats)


def noise(generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(WINDOWS, generator=generator, dtype=torch.float64)


def test_holds_the_score_of_all_text_and_the_average_nineteen_times_in_twenty() -> None:
    generator, worse = torch.Generator().manual_seed(1), {"code": 0.05, "math": 0.1}
    truth = {name: 100 * math.exp(-loss) for name, loss in worse.items()}
    average, held = sum(truth.values()) / 2, dict.fromkeys([*worse, "average"], 0)
    for _ in range(200):
        own = {name: 3 + noise(generator) for name in worse}
        model = {name: losses(own[name] + loss + noise(generator, 0.03)) for name, loss in worse.items()}
        found, of_average = score_intervals({name: paired(loss, losses(own[name])) for name, loss in model.items()})
        for name, (low, high) in found.items():
            held[name] += low <= truth[name] <= high
        assert of_average is not None
        held["average"] += of_average[0] <= average <= of_average[1]
    # 95 % of 200 are 190, with a standard deviation of 3.1; the bootstrap of 48 windows is narrower by about 1 %.
    assert all(178 <= times <= 199 for times in held.values()), held


def test_what_makes_a_window_hard_for_both_does_not_widen_it() -> None:
    hard = torch.linspace(1, 9, WINDOWS)  # perplexities from 3 to 8,000
    low, high = score_intervals({"code": paired(losses(hard + 0.01), losses(hard))})[0]["code"]
    assert high - low < 1e-4
    assert abs(low - 100 * math.exp(-0.01)) < 1e-4


def test_one_window_has_none_and_no_expert_leaves_no_average() -> None:
    one, two = losses(torch.tensor([2.0])), losses(torch.tensor([2.0, 2.5]))
    for own, model in (
        ({"code": one, "math": two}, {"code": one, "math": two}),
        ({"math": two}, {"math": two, "law": two}),
    ):
        found, average = score_intervals({**model, **{name: paired(model[name], loss) for name, loss in own.items()}})
        assert found == {"math": [100.0, 100.0]}  # of the expert itself
        assert average is None


def test_window_that_predicts_nothing_is_left_out() -> None:
    own, model = DomainLoss((0.0, 20.0, 30.0), (0, 10, 10)), DomainLoss((0.0, 21.0, 30.5), (0, 10, 10))
    alone = DomainLoss(model.nats[1:], (10, 10), own.nats[1:])
    assert score_intervals({"code": paired(model, own)}) == score_intervals({"code": alone})


def test_infinite_loss_has_no_perplexity() -> None:
    assert DomainLoss((math.inf, 1.0), (1, 1)).perplexity == math.inf
    assert math.isnan(DomainLoss((math.nan, 1.0), (1, 1)).perplexity)
    assert DomainLoss((1e9,), (1,)).perplexity == math.inf


@pytest.mark.check
def test_a_difference_holds_the_true_one_nineteen_times_in_twenty() -> None:
    generator = torch.Generator().manual_seed(3)
    truth, held = 100 * (math.exp(-0.05) - math.exp(-0.06)), 0
    for _ in range(200):
        own, alone = 3 + noise(generator), noise(generator, 0.01)
        both = noise(generator, 0.05)  # what is hard for either
        first, second = (paired(losses(own + each), losses(own)) for each in (0.05 + both, 0.06 + both + alone))
        ends = difference_interval([first], [second])
        assert ends is not None
        held += ends[0] <= truth <= ends[1]
    assert 178 <= held <= 199


def test_a_difference_is_found_where_the_intervals_overlap() -> None:
    own = losses(torch.linspace(1, 3, WINDOWS))
    both = torch.linspace(1, 3, WINDOWS) + 0.2 * torch.sin(torch.arange(WINDOWS))
    first, second = losses(both + 0.05), losses(both + 0.06)
    ours, others = (score_intervals({"code": paired(model, own)})[0]["code"] for model in (first, second))
    assert others[1] > ours[0]
    ends = difference_interval([paired(first, own)], [paired(second, own)])
    assert ends is not None
    assert 0 < ends[0] < 100 * (math.exp(-0.05) - math.exp(-0.06)) < ends[1]
    other_way = difference_interval([paired(second, own)], [paired(first, own)])
    assert other_way is not None
    assert [round(end, 9) for end in other_way] == [round(-ends[1], 9), round(-ends[0], 9)]


def test_a_difference_needs_two_windows_and_the_same_ones() -> None:
    one, two, three = (losses(torch.linspace(2, 3, n)) for n in (1, 2, 3))
    assert difference_interval([two], [two]) == [0.0, 0.0]
    assert difference_interval([two], [three]) is None
    assert difference_interval([two, two], [two, None]) is None
    assert difference_interval([two, one], [two, one]) is None
    assert difference_interval([], []) is None


def test_without_an_own_expert_the_sign_of_a_difference_is_known() -> None:
    better, worse = (losses(torch.linspace(1, most, WINDOWS)) for most in (3, 3.2))
    ahead, behind = difference_interval([better], [worse]), difference_interval([worse], [better])
    assert ahead is not None
    assert behind is not None
    assert ahead[0] > 0 > behind[1]


def test_stored_losses_do_not_grow_with_the_text() -> None:
    many = losses(torch.linspace(1, 3, 2 * MOST_BLOCKS + 1))
    stored = stored_losses({"code": paired(many, many), "law": many})
    assert len(stored["code"]["tokens"]) == len(stored["code"]["own"]) == 134  # three windows each
    assert "own" not in stored["law"]
    found = losses_in({"losses": stored}, "code")
    assert found is not None
    assert sum(found.tokens) == sum(many.tokens)
    assert math.isclose(found.mean, many.mean, rel_tol=1e-6)  # rounded to 1e-4 nats a block
    assert losses_in({}, "code") is None
