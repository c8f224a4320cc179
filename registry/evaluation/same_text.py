"""Scores of several compositions on the same text: what compares, which is better, and what has to stand apart."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import fsum, sqrt
from typing import Any

from registry.evaluation.intervals import difference_interval
from registry.evaluation.stored import Average, Measured, Score, Text, score_text

Found = Mapping[str, Sequence[Measured]]  # domain → what the evaluations of one composition found, the latest first

Interval = Sequence[float] | None  # low and high end of a 95 % interval; None if it is not known


def found_in(scores: Sequence[Score]) -> dict[str, list[Measured]]:
    """Return what the evaluations, the latest first, of one composition found."""
    found: dict[str, list[Measured]] = {}
    for score in scores:
        for domain, measured in score.rows.items():
            found.setdefault(domain, []).append(measured)
    return {domain: [_with_averages(one, each) for one in each] for domain, each in found.items()}


def _with_averages(measured: Measured, others: Sequence[Measured]) -> Measured:
    """Return figures with the averages of all evaluations that read the same text against the same expert."""
    same = [one for one in others if (one.text, one.own, one.score) == (measured.text, measured.own, measured.score)]
    return replace(measured, averages=frozenset().union(*(one.averages for one in same)))


@dataclass(frozen=True)
class Row:
    """A domain, on a text that two or more compositions read; None for the cell of one that did not."""

    domain: str
    cells: Sequence[Measured | None]

    @property
    def readers(self) -> set[int]:
        """The compositions that read it."""
        return {at for at, cell in enumerate(self.cells) if cell is not None}

    @property
    def read(self) -> list[Measured]:
        """The cells of those that read it."""
        return [cell for cell in self.cells if cell is not None]

    @property
    def scores_compare(self) -> bool:
        """True if the scores are relative to the same version of the domain's own expert."""
        return len({cell.own for cell in self.read}) == 1

    def of(self, figure: str) -> list[Any]:
        """Return an attribute of every cell; None for the composition that has none."""
        return [None if cell is None else getattr(cell, figure) for cell in self.cells]

    def scores(self) -> list[float | None]:
        """Return the scores, none if they do not compare."""
        return self.of("score") if self.scores_compare else [None] * len(self.cells)

    def ahead(self, first: int, second: int) -> Interval:
        """Return the 95 % interval of how far one composition is ahead of another; None if it is not known."""
        return _difference([self], first, second)

    @property
    def is_unsure(self) -> bool:
        """True if the best score, or the lowest perplexity where scores do not compare, may be ahead by chance."""
        scores = self.scores()
        if any(score is not None for score in scores):
            return may_be_chance(scores, self.of("interval"), self.ahead)
        lower = [None if value is None else -value for value in self.of("perplexity")]
        return may_be_chance(lower, [None] * len(lower), self.ahead)


def _difference(rows: Sequence[Row], first: int, second: int) -> Interval:
    both = ([row.cells[at] for row in rows] for at in (first, second))
    return difference_interval(*([None if cell is None else cell.losses for cell in cells] for cells in both))


def shared_rows(found: Sequence[Found]) -> list[Row]:
    """Return a row for every domain of which two or more compositions read the same text.

    Of several such texts it is that of most compositions, then of most tokens; another only where it compares others.
    """
    rows: list[Row] = []
    for domain in dict.fromkeys(domain for one in found for domain in one):
        texts = dict.fromkeys(measured.text for one in found for measured in one.get(domain, ()))
        lines = [
            Row(domain, [next((cell for cell in one.get(domain, ()) if cell.text == text), None) for one in found])
            for text in texts
        ]
        compared: list[set[int]] = []
        for line in sorted(lines, key=lambda line: (-len(line.read), -line.read[0].tokens)):
            if len(line.readers) > 1 and not any(line.readers <= others for others in compared):
                compared.append(line.readers)
                rows.append(line)
    return rows


@dataclass(frozen=True)
class Mean:
    """Mean scores over the domains (`rows`) of which as many compositions as possible have scores that compare.

    `oracle` are the same with perfect routing, `plain` those of the averaged weights of its experts; None for a
    composition that lacks a domain.
    """

    rows: Sequence[Row]
    scores: Sequence[float | None]
    oracle: Sequence[float | None]
    plain: Sequence[float | None]

    @property
    def scored(self) -> list[int]:
        """The compositions that have a mean score."""
        return [at for at, score in enumerate(self.scores) if score is not None]

    def interval(self, at: int) -> tuple[float, float] | None:
        """Return the 95 % interval of a composition's mean; None if a domain has none.

        Where one evaluation scored exactly these domains, it is the one recorded. Elsewhere half widths add as
        squares: domains are different texts, so their errors are independent.
        """
        mean, cells = self.scores[at], [row.cells[at] for row in self.rows]
        shared = frozenset[Average].intersection(*(frozenset() if cell is None else cell.averages for cell in cells))
        for one in shared:
            if one.interval and one.domains == {row.domain for row in self.rows}:
                return one.interval[0], one.interval[1]
        ends = [None if cell is None else cell.interval for cell in cells]
        if mean is None or any(each is None for each in ends):
            return None
        half = sqrt(fsum(((each[1] - each[0]) / 2) ** 2 for each in ends if each is not None)) / len(ends)
        return mean - half, mean + half

    @property
    def intervals(self) -> list[tuple[float, float] | None]:
        """The 95 % interval of every composition's mean."""
        return [self.interval(at) for at in range(len(self.scores))]

    def ahead(self, first: int, second: int) -> Interval:
        """Return the 95 % interval of how far one composition's mean is ahead of another's; None if it is not known."""
        return _difference(self.rows, first, second)

    @property
    def is_unsure(self) -> bool:
        """True if the best mean may be ahead by chance."""
        return may_be_chance(self.scores, self.intervals, self.ahead)


def mean_of(rows: Sequence[Row]) -> Mean | None:
    """Return the mean scores; None if no two compositions have scores that compare."""
    count = len(rows[0].cells) if rows else 0
    for size in range(count, 1, -1):
        groups = [
            {row.domain: row for row in reversed(rows) if all(row.scores()[at] is not None for at in group)}
            for group in combinations(range(count), size)
        ]
        common = [row for row in rows if row in max(groups, key=len).values()]
        if common:
            return Mean(
                common,
                _means([row.scores() for row in common]),
                _means([row.of("oracle") for row in common]),
                _means([row.of("plain") for row in common]),
            )
    return None


def _means(lines: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of each column; None for one that lacks a value."""
    columns = [[value for value in column if value is not None] for column in zip(*lines, strict=True)]
    return [fsum(column) / len(column) if len(column) == len(lines) else None for column in columns]


def best(values: Sequence[float | None], *, least: bool = False, digits: int = 1) -> set[int]:
    """Return which values are best as they are shown; none if there are not two, or all are alike."""
    shown = {at: float(score_text(value, digits)) for at, value in enumerate(values) if value is not None}
    top = (min if least else max)(shown.values(), default=0.0)
    found = {at for at, value in shown.items() if value == top}
    return found if len(shown) > len(found) else set()


def may_be_chance(
    values: Sequence[float | None],
    intervals: Sequence[Interval],
    ahead: Callable[[int, int], Interval],
) -> bool:
    """Tell whether the best value may be ahead of another by chance; False if nothing is known of its chance.

    Args:
        values: of compositions, the largest is best.
        intervals: 95 % interval of each, if known; they count only where their difference is not known.
        ahead: gives the 95 % interval of the difference of two values by their positions, if known.
    """
    known = [at for at, value in enumerate(values) if value is not None]
    first = max(known, key=lambda at: values[at] or 0, default=0)
    for at in known:
        if at != first:
            difference, own, other = ahead(first, at), intervals[first], intervals[at]
            overlap = own is not None and other is not None and other[1] >= own[0]
            if overlap if difference is None else difference[0] <= 0:
                return True
    return False


def uncovered(mean: Mean | None, experts: Sequence[Collection[str]]) -> list[str]:
    """Return the experts that the best composition lacks and others have, if the mean leaves out their domains.

    `experts` are the names of the experts of each composition.
    """
    winners = best(mean.scores) if mean is not None else set()
    if mean is None or len(winners) != 1 or not experts:
        return []
    first, compared = min(winners), {row.domain for row in mean.rows}
    others = (expert for at in mean.scored for expert in experts[at])
    return [expert for expert in dict.fromkeys(others) if expert not in {*experts[first], *compared}]


def readers(domain: str, found: Sequence[Found], rows: Sequence[Row]) -> set[int]:
    """Return the compositions that read the text of a domain to which others are to be added.

    It is the text that most of them read. Where several read a text each of its own, it is no one's.
    """
    row = next((row for row in rows if row.domain == domain), None)
    if row is not None:
        return row.readers
    alone = {at for at, one in enumerate(found) if domain in one}
    return alone if len(alone) == 1 else set()


def apart(found: Sequence[Found], rows: Sequence[Row]) -> list[tuple[int, Measured, tuple[int, Text] | None]]:
    """Return the latest figures that compare with none, each with its composition, and another one with its text.

    The other one is the first with text of the domain, if there is one.
    """
    lines = []
    for at, one in enumerate(found):
        for domain, measured in one.items():
            if not any(row.domain == domain and at in row.readers for row in rows):
                rivals = ((other, texts[domain][0].text) for other, texts in enumerate(found) if domain in texts)
                lines.append((at, measured[0], next((rival for rival in rivals if rival[0] != at), None)))
    return lines
