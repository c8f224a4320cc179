"""Intervals of scores: how far a score would move on other text of the same domains."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

RESAMPLES = 2000
"""B, the resamples of a bootstrap."""

LEVEL = 0.95
"""The share of resamples that an interval holds."""

_LARGEST_LOSS = 700.0
"""Losses from here on have an exp(loss) that is too large for a float."""


@dataclass(frozen=True)
class DomainLoss:
    """The loss of a model on one domain's text.

    Attributes:
        nats: the sum of the negative log-likelihoods of each window, in nats; one value a window.
        tokens: predicted tokens of each window.
    """

    nats: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Loss in nats a token; NaN or infinite if that of some window is."""
        return sum(self.nats) / sum(self.tokens)

    @property
    def perplexity(self) -> float:
        """exp of the mean; infinity if that is too large for a float."""
        return math.exp(self.mean) if self.mean < _LARGEST_LOSS or math.isnan(self.mean) else math.inf


@dataclass(frozen=True)
class Intervals:
    """Intervals of a model's scores.

    Attributes:
        score: domain → (low, high) of its normalised score; only domains of two or more windows.
        average: (low, high) of the average score; None if a domain is missing.
    """

    score: dict[str, list[float]]
    average: list[float] | None


def score_intervals(own: Mapping[str, DomainLoss], model: Mapping[str, DomainLoss]) -> Intervals:
    """Return the intervals of a model's scores by the paired percentile bootstrap over windows.

    Windows are drawn with replacement, domain by domain, and the score 100 · exp(own loss − loss) is computed on each
    draw: the same windows for the expert and the model, so what makes a window hard for both cancels (Efron 1979;
    paired as in Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation"). Draws have a fixed
    seed: the same losses give the same interval. Windows of one document resemble one another, so an interval is
    somewhat too narrow if documents are much longer than windows.

    Args:
        own: domain → loss of the domain's own expert.
        model: domain → loss of the model, on the same windows.
    """
    draws = {domain: _draws(own[domain], model[domain]) for domain in model if domain in own}
    known = {domain: scores for domain, scores in draws.items() if scores is not None}
    complete = bool(known) and len(known) == len(model)
    mean = torch.stack(list(known.values())).mean(dim=0) if complete else None
    return Intervals(
        {domain: _interval(scores) for domain, scores in known.items()}, None if mean is None else _interval(mean)
    )


def _draws(own: DomainLoss, model: DomainLoss) -> Float64[Tensor, "B"] | None:
    """Return the score on each resample, or None where a single window gives no spread."""
    tokens = torch.tensor(own.tokens, dtype=torch.float64)  # (W,)
    gains = torch.tensor(own.nats, dtype=torch.float64) - torch.tensor(model.nats, dtype=torch.float64)  # (W,)
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
