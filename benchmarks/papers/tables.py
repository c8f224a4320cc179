"""Tables, means and differences of `papers`, as Markdown."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from registry.evaluation.intervals import LEVEL, RESAMPLES

Found = Mapping[str, Mapping[str, Any]]
"""Part → its figures."""


class Side(NamedTuple):
    """One of two rows that are compared: what it is called, its part, and its name there."""

    label: str
    part: str
    row: str


class Difference(NamedTuple):
    """By how many percent one perplexity is above another, with the ends of its interval."""

    percent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.percent:+.2f} % [{self.low:+.2f}, {self.high:+.2f}]"


def mean(of: Mapping[str, float]) -> float:
    """Return the geometric mean of perplexities."""
    return math.exp(sum(map(math.log, of.values())) / len(of))


def alike(size: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether the experts of two parts, and their test text, have one size."""
    return all(size[key] == other[key] for key in ("tokens", "windows", "batch", "lr"))


def difference(found: Found, first: Side, second: Side, domains: Sequence[str] = ()) -> Difference | None:
    """Return how the first one's mean log perplexity over domains differs from the second's, as percent of perplexity.

    The interval is that of the paired percentile bootstrap: windows are drawn with replacement, domain by domain, the
    same for both (Koehn 2004). None if losses by window were not kept, or are not of the same two windows or more.

    Args:
        domains: of which the mean is; default all that both have.
    """
    try:
        ours, theirs = (_losses(found[side.part], side.row) for side in (first, second))
    except KeyError:
        return None
    generator, draws, values = torch.Generator().manual_seed(0), [], []
    for domain in domains or [domain for domain in ours if domain in theirs]:
        (nats, tokens), (others, same) = ours[domain], theirs[domain]
        if not torch.equal(tokens, same) or len(tokens) < 2:
            return None
        gains = (nats - others) * tokens  # (W,)
        picks = torch.randint(len(tokens), (RESAMPLES, len(tokens)), generator=generator)  # (B, W)
        draws.append(gains[picks].sum(dim=1) / tokens[picks].sum(dim=1))
        values.append(gains.sum() / tokens.sum())
    outside = (1 - LEVEL) / 2
    ends = torch.stack(draws).mean(dim=0).quantile(torch.tensor([outside, 1 - outside], dtype=torch.float64))
    return Difference(*(100 * torch.expm1(torch.stack([torch.stack(values).mean(), *ends]))).tolist())


def _losses(figures: Mapping[str, Any], row: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return domain → nats a token and tokens of every window (KeyError: they were not kept)."""

    def numbers(text: str) -> torch.Tensor:
        return torch.tensor(list(map(float, text.split())), dtype=torch.float64)

    return {
        domain: (numbers(text), numbers(figures["predicted"][domain])) for domain, text in figures["nats"][row].items()
    }


def verdict(differences: Sequence[Difference | None]) -> str:
    """Tell whether the first of every two has the lower perplexity, by more than other windows would change it."""
    known = [one for one in differences if one is not None]
    if len(known) < len(differences):
        return "–"
    if any(one.low > 0 for one in known):
        return "no"
    return "yes" if all(one.high < 0 for one in known) else "within noise"


def table(rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines of a table of perplexities, with their mean."""
    domains = list(next(iter(rows.values())))
    yield f"| model | {' | '.join(domains)} | mean |"
    yield f"| --- | {'---: | ' * (len(domains) + 1)}".rstrip()
    for name, of in rows.items():
        yield f"| {name} | {' | '.join(f'{of[domain]:.2f}' for domain in domains)} | {mean(of):.2f} |"


def score_table(
    rows: Mapping[str, Mapping[str, float]], spread: Mapping[str, Mapping[str, float]] | None = None
) -> Iterator[str]:
    """Yield the lines of a table of scores; `spread` has rows' standard deviations over seeds."""
    domains = list(next(iter(rows.values())))
    yield f"| model | {' | '.join(domains)} |"
    yield f"| --- | {'---: | ' * len(domains)}".rstrip()
    for name, of in rows.items():
        more = (spread or {}).get(name, {})
        cells = (f"{of[domain]:.2f}" + (f" ± {more[domain]:.2f}" if any(more.values()) else "") for domain in domains)
        yield f"| {name} | {' | '.join(cells)} |"
