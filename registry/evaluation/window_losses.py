"""Losses of models, window by window, and the format that an evaluation stores them in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_BLOCKS = 200
"""Blocks of windows that a domain's losses are stored in, at most."""

_LARGEST_LOSS = 700.0
"""Losses from here on have an exp(loss) that is too large for a float."""

_DIGITS = 4
"""Decimals of a stored loss, in nats: a score moves by less than a millionth."""


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

    def blocks(self) -> "DomainLoss":
        """Join neighbouring windows, so that at most `MOST_BLOCKS` are left: what is stored does not grow with text."""
        size = -(-len(self.nats) // MOST_BLOCKS)
        starts = range(0, len(self.nats), size)
        return DomainLoss(
            tuple(round(math.fsum(self.nats[start : start + size]), _DIGITS) for start in starts),
            tuple(sum(self.tokens[start : start + size]) for start in starts),
        )


@dataclass(frozen=True)
class PairedLoss:
    """Losses of a model and of a domain's own expert on the domain's text.

    Attributes:
        model: of the model.
        own: of the expert, on the same windows; None if it is not registered.
    """

    model: DomainLoss
    own: DomainLoss | None

    def blocks(self) -> "PairedLoss":
        """Join neighbouring windows of both (`DomainLoss.blocks`)."""
        return PairedLoss(self.model.blocks(), None if self.own is None else self.own.blocks())


def stored_losses(losses: Mapping[str, PairedLoss]) -> dict[str, dict[str, list[Any]]]:
    """Return the losses of a composition in the catalog's format: domain → tokens, composition, own.

    Each is a list of one value a block; a domain without an own expert has no `own`.
    """
    document: dict[str, dict[str, list[Any]]] = {}
    for domain, loss in losses.items():
        blocks = loss.blocks()
        document[domain] = {"tokens": list(blocks.model.tokens), "composition": list(blocks.model.nats)}
        if blocks.own is not None:
            document[domain]["own"] = list(blocks.own.nats)
    return document


def losses_in(document: Mapping[str, Any], domain: str) -> PairedLoss | None:
    """Return the losses on a domain in the document of an evaluation; None of one that stores none."""
    stored = document.get("losses", {}).get(domain)
    if stored is None:
        return None
    tokens = tuple(stored["tokens"])
    own = DomainLoss(tuple(stored["own"]), tokens) if "own" in stored else None
    return PairedLoss(DomainLoss(tuple(stored["composition"]), tokens), own)
