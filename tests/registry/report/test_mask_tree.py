"""Proves: masks join in the order of average linkage, and the tree and its table in a report say where."""

import random
import sys
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from registry.design import expert_colours
from registry.errors import RegError
from registry.report import ReportData, page
from registry.report.charts import charts
from registry.report.data import MaskJoin, MemberFigures
from registry.report.graphs import mask_joins, mask_tree

NAMES = tuple(f"mix-{number}" for number in range(1, 8))


def overlaps(seed: int) -> tuple[tuple[str, str, float], ...]:
    draw = random.Random(seed)
    return tuple((a, b, draw.random()) for a, b in combinations(NAMES, 2))


def average_linkage(overlap: tuple[tuple[str, str, float], ...]) -> list[tuple[set[frozenset[str]], float]]:
    """Return the groups of each join and their mean overlap, in plain loops.

    Sokal and Michener 1958: the two groups of the least d(A, B) = Σ_a Σ_b d(a, b) / (|A| |B|) join, d = 1 - overlap.
    """
    distance = {frozenset((a, b)): 1 - share for a, b, share in overlap}
    groups, joins = [frozenset([name]) for name in NAMES], []
    while len(groups) > 1:
        best, pair = float("inf"), (groups[0], groups[1])
        for one, other in combinations(groups, 2):
            total = 0.0
            for a in one:
                for b in other:
                    total += distance[frozenset((a, b))]
            if total / (len(one) * len(other)) < best:
                best, pair = total / (len(one) * len(other)), (one, other)
        joins.append((set(pair), 1 - best))
        groups = [group for group in groups if group not in pair] + [pair[0] | pair[1]]
    return joins


@pytest.mark.check
@pytest.mark.parametrize("seed", range(5))
def test_joins_are_those_of_average_linkage(seed: int) -> None:
    found, expected = mask_joins(NAMES, overlaps(seed)), average_linkage(overlaps(seed))
    assert [{frozenset(join.first), frozenset(join.second)} for join in found] == [groups for groups, _ in expected]
    assert [join.overlap for join in found] == pytest.approx([overlap for _, overlap in expected], abs=1e-12)
    assert mask_joins(NAMES[:1], ()) == ()
    assert mask_joins(NAMES[:2], ((NAMES[0], NAMES[1], 1.0),)) == (MaskJoin(("mix-1",), ("mix-2",), 1.0),)


@pytest.mark.check
def test_lines_of_a_tree_do_not_cross_and_stand_at_their_overlaps() -> None:
    joins = mask_joins(NAMES, overlaps(0))
    tree = mask_tree(expert_colours(NAMES), joins)
    rows = {leaf["expert"]: leaf["row"] for leaf in tree["data"]["values"]}
    assert sorted(rows.values()) == list(range(len(NAMES)))
    for join in joins:
        places = sorted(rows[name] for name in join.first + join.second)
        assert places == [places[0] + number for number in range(len(places))], "a group stands together"
    lines: list[dict[str, Any]] = tree["layer"][0]["data"]["values"]
    for join, (first, second, between) in zip(joins, zip(*[iter(lines)] * 3, strict=True), strict=True):
        assert {line["overlap"] for line in (first, second, between)} == {between["end"]} == {join.overlap}
        assert sorted((first["row"], second["row"])) == [between["row"], between["last"]]
        assert first["end"] >= join.overlap
    assert len(lines) == 3 * len(joins)


@pytest.mark.check
def test_report_has_the_tree_and_its_table(predicted: ReportData) -> None:
    members = tuple(MemberFigures(name, None, name, None, None) for name in NAMES)
    joins = mask_joins(NAMES, overlaps(0))
    figures = replace(predicted, members=members, mask_overlap=overlaps(0), mask_joins=joins)
    assert charts(figures)["mask-tree"]["height"] > 0
    text = page(figures)
    assert 'data-chart="mask-tree" role="img" aria-label="Tree' in text
    for join in joins:
        assert f'<td class="text">{", ".join(join.first)}</td><td class="text">{", ".join(join.second)}</td>' in text
        assert f'<td class="num">{100 * join.overlap:.1f}\u00a0%</td>' in text
    assert figures.document()["mask_joins"][0]["overlap"] == joins[0].overlap
    assert predicted.mask_joins == ()
    assert "mask-tree" not in charts(predicted)
    assert "Tree of masks" not in page(predicted)


@pytest.mark.check
def test_report_needs_no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.cluster.hierarchy", None)
    assert mask_joins(NAMES[:1], ()) == ()
    with pytest.raises(RegError, match="needs scipy") as caught:
        mask_joins(NAMES, overlaps(0))
    assert caught.value.hint == "run: pip install scipy"
