"""The three tiers of the tests, by what they cost.

`test`: every commit, in five minutes. `check`: what CI runs after it: databases, buckets, Ray, browsers, the older
transformers, trainings, and further cases of slow tests. `trust`: the rest.

A test is of the tier that it is marked with: `@pytest.mark.check`, or with `after=3` its cases from the fourth on, and
so `trust`. One that takes a fixture of `CHECKED` is of `check` at least.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

import pytest

TIERS = ("test", "check", "trust")
CHECKED = frozenset(
    (
        *("browser", "postgres_server", "s3", "s3_server", "arrays_url", "filled_url", "filled_bucket"),
        *("transformers4", "demo_result", "small_demo"),
    )
)
"""Fixtures that start a program of their own, read what only CI has, or train."""


def tiers_of(items: Iterable[pytest.Item]) -> dict[pytest.Item, str]:
    """Return the tier of every case; cases of one test are counted in the order given, for each database alike."""
    seen: Counter[tuple[str, str]] = Counter()
    tiers = {}
    for item in items:
        kind = _catalog_kind(item)
        number = seen[item.nodeid.partition("[")[0], kind]
        seen[item.nodeid.partition("[")[0], kind] += 1
        tier = int(kind == "postgresql" or not CHECKED.isdisjoint(getattr(item, "fixturenames", ())))
        for at_least, name in enumerate(TIERS):
            for mark in item.iter_markers(name):
                if number >= mark.kwargs.get("after", 0):
                    tier = max(tier, at_least)
        tiers[item] = TIERS[tier]
    return tiers


def drawn_place(seed: int, nodeid: str) -> bytes:
    """Return by what to sort a case so that files are in an order drawn by a seed, and cases of one stay together."""
    return hashlib.sha256(f"{seed} {nodeid.partition('::')[0]}".encode()).digest()


def _catalog_kind(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("catalog_kind", "")) if callspec else ""
