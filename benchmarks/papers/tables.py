"""Tables and means of `papers` as Markdown."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

Found = Mapping[str, Mapping[str, Any]]
"""Part → its figures."""


def mean(of: Mapping[str, float]) -> float:
    """Return the geometric mean of perplexities."""
    return math.exp(sum(map(math.log, of.values())) / len(of))


def table(rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines of a table of perplexities, with their mean."""
    domains = list(next(iter(rows.values())))
    yield f"| model | {' | '.join(domains)} | mean |"
    yield f"| --- | {'---: | ' * (len(domains) + 1)}".rstrip()
    for name, of in rows.items():
        yield f"| {name} | {' | '.join(f'{of[domain]:.2f}' for domain in domains)} | {mean(of):.2f} |"


def score_table(rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines of a table of scores."""
    domains = list(next(iter(rows.values())))
    yield f"| model | {' | '.join(domains)} |"
    yield f"| --- | {'---: | ' * len(domains)}".rstrip()
    for name, of in rows.items():
        yield f"| {name} | {' | '.join(f'{of[domain]:.2f}' for domain in domains)} |"
