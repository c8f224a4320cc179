"""Intervals of scores: how far a score would move on other text of the same domains."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from registry.evaluation.results import DomainLoss, Row

RESAMPLES = 2000  # B, the resamples of a bootstrap
LEVEL = 0.95  # share of resamples that an interval holds


def score_intervals(losses: Mapping[str, DomainLoss]) -> tuple[dict[str, list[float]], list[float] | None]:
    """Return the intervals of a model's scores by the paired percentile bootstrap over windows.

    Windows are drawn with replacement, domain by domain, and the score 100 · exp(own loss − loss) is computed on each
    draw: the same windows for the domain's own expert and the model, so what makes a window hard for both cancels
    (Efron 1979; paired as in Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation"). Draws
    have a fixed seed: the same losses give the same interval. Windows of one document resemble one another, so an
    interval is somewhat too narrow if documents are much longer than windows.

    Domain → [low, high] is of domains with an own expert and two or more windows; the interval of the average score is
    None if a domain is missing.
    """
    draws = {domain: None if loss.own is None else _draws(loss.own, loss) for domain, loss in losses.items()}
    mean = _mean(list(draws.values()))
    found = {domain: _interval(scores) for domain, scores in draws.items() if scores is not None}
    return found, None if mean is None else _interval(mean)


def difference_interval(first: Sequence[DomainLoss | None], second: Sequence[DomainLoss | None]) -> list[float] | None:
    """Return the interval of the difference of two models' average scores, by the bootstrap of `score_intervals`.

    Both are scored on the same draws of windows: what makes a window hard for both cancels, and the interval is
    narrower than their own two suggest. If it does not hold 0, one is ahead by more than chance. Without an own expert
    the first model stands in for it: the sign of the difference is the same.

    Low and high end are those of the first one's average less the second one's, in points; None if losses are not
    known, not of the same windows, or of fewer than two.
    """
    ours, theirs = list[Any](), list[Any]()
    for one, other in zip(first, second, strict=True):
        if one is None or other is None or one.tokens != other.tokens:
            return None
        ours.append(_draws(one.own or one.nats, one))
        theirs.append(_draws(one.own or one.nats, other))
    means = _mean(ours), _mean(theirs)
    return None if means[0] is None or means[1] is None else _interval(means[0] - means[1])


def ahead_of(row: Row, other: Row) -> list[float] | None:
    """Return [low, high], the interval of a row's average score less another's (`difference_interval`).

    Windows are drawn in blocks, as an evaluation stores them, so its time does not grow with the text. None if one of
    the rows has no average, or they were not scored on the same windows.
    """
    if row.average is None or other.average is None or row.losses.keys() != other.losses.keys():
        return None
    return difference_interval(*([one.losses[domain].blocks() for domain in row.losses] for one in (row, other)))


def _mean(draws: Sequence[Float64[Tensor, "B"] | None]) -> Float64[Tensor, "B"] | None:
    """Return the average score on each resample; None if there is no domain, or one has no draws."""
    known = [scores for scores in draws if scores is not None]
    return torch.stack(known).mean(dim=0) if known and len(known) == len(draws) else None


def _draws(own: Sequence[float], model: DomainLoss) -> Float64[Tensor, "B"] | None:
    """Return the score on each resample, or None where a single window gives no spread."""
    tokens = torch.tensor(model.tokens, dtype=torch.float64)  # (W,)
    gains = torch.tensor(own, dtype=torch.float64) - torch.tensor(model.nats, dtype=torch.float64)  # (W,)
    gains, tokens = gains[tokens > 0], tokens[tokens > 0]  # a window of one token predicts nothing
    if len(tokens) < 2:
        return None
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(tokens), (RESAMPLES, len(tokens)), generator=generator)  # (B, W)
    return 100 * torch.exp(gains[drawn].sum(dim=1) / tokens[drawn].sum(dim=1))


def _interval(scores: Float64[Tensor, "B"]) -> list[float]:
    outside = (1 - LEVEL) / 2
    low, high = torch.quantile(scores, torch.tensor([outside, 1 - outside], dtype=torch.float64)).tolist()
    return [low, high]
