"""Means over domains."""

import math
from collections.abc import Mapping


def mean(of: Mapping[str, float]) -> float:
    """Return the geometric mean of perplexities."""
    return math.exp(sum(map(math.log, of.values())) / len(of))
