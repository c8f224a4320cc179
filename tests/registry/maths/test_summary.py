"""Proves: overlaps told from summaries are those told from whole Grams, where K directions hold what varies."""

import math

import pytest
import torch

from registry.maths.overlap import overlap
from registry.maths.statistics import Statistics
from registry.maths.summary import Summary, summary_overlap
from tests.registry.maths.test_overlap import close, normal, of, rotation


def summaries(a: Statistics, b: Statistics, directions: int = 48) -> tuple[Summary, Summary]:
    return Summary.of(a, directions), Summary.of(b, directions)


def pair(size: int, shift: float = 0.3) -> tuple[Statistics, Statistics]:
    """Return the statistics of two experts whose tokens vary most along partly different directions."""
    spread = torch.arange(1, size + 1).double() ** -0.75
    moved = torch.zeros(size)
    moved[1] = shift
    mine = of((normal(1, 1500, size) * spread + moved) @ rotation(size))
    return mine, of((normal(2, 1200, size) * spread.roll(3)) @ rotation(size))


def test_all_directions_give_the_same_overlap() -> None:
    a, b = pair(40)
    assert close(summary_overlap(*summaries(a, b)), overlap(a, b), 1e-5)


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_some_directions_give_nearly_the_same_overlap(shift: float) -> None:
    a, b = pair(200, shift)
    exact, found = overlap(a, b), summary_overlap(*summaries(a, b))
    assert found.routing == pytest.approx(exact.routing, abs=0.01)
    assert found.subspace == pytest.approx(exact.subspace, abs=1e-5)


def test_equal_summaries_overlap_wholly() -> None:
    a, _ = pair(100)
    found = summary_overlap(*summaries(a, a))
    assert (found.distance, found.routing) == (0, 1)
    assert found.subspace == pytest.approx(1, abs=1e-5)


def test_what_is_left_of_the_variance_is_spread_over_the_other_directions() -> None:
    a, _ = pair(100)
    whole, some = Summary.of(a, 100), Summary.of(a, 10)
    assert (whole.rest, len(some.spread)) == (0, 10)
    assert some.rest * 90 + float(some.spread.sum()) == pytest.approx(float(whole.spread.sum()))
    assert bool((some.spread.diff() < 0).all())


def test_where_nothing_varies_the_means_decide() -> None:
    ones = torch.ones(50, 6)
    assert summary_overlap(*summaries(of(ones), of(ones))).distance == 0
    assert summary_overlap(*summaries(of(ones), of(2 * ones))).distance == math.inf


def test_what_cannot_be_compared_is_refused() -> None:
    a = Summary.of(of(normal(1, 60, 8)))
    with pytest.raises(ValueError, match="8 channels cannot be compared with 9"):
        summary_overlap(a, Summary.of(of(normal(2, 60, 9))))
    with pytest.raises(ValueError, match="rank is 0"):
        summary_overlap(a, a, rank=0)
    with pytest.raises(ValueError, match="3 tokens of an expert are too few"):
        summary_overlap(a, Summary.of(of(normal(2, 3, 8))))


@pytest.mark.parametrize("directions", [2, 8])
def test_a_gram_of_no_activations_has_no_summary(directions: int) -> None:
    statistics = of(normal(1, 60, 8))
    for change in ("diagonal", "one"):
        impossible = statistics.matrix.clone()
        if change == "diagonal":
            impossible.diagonal()[:2].mul_(-3)
        else:
            impossible[0, 1] = impossible[1, 0] = 5 * impossible.diagonal().max()
        with pytest.raises(ValueError, match="that of no activations"):
            Summary.of(Statistics(impossible, statistics.exponents), directions)
    with pytest.raises(ValueError, match="it counts none"):
        Summary.of(Statistics.zero(statistics.exponents))
