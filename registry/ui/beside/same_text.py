"""Scores of several compositions on the same text: what compares, which is better, and what has to stand apart."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import fsum, sqrt
from typing import Any

from registry.evaluation.intervals import difference_interval
from registry.evaluation.window_losses import PairedLoss, losses_in
from registry.report.verdict import FEW_TOKENS, MOST_NAMED, by_chance, by_difference, listed, score_text
from registry.ui.scores import Text
from store.catalog import EvaluationRecord


@dataclass(frozen=True)
class Average:
    """The 95 % interval, low and high, of the average score over exactly these domains; None if not recorded."""

    domains: frozenset[str]
    interval: tuple[float, ...] | None


@dataclass(frozen=True)
class Measured:
    """Figures of an evaluation on one domain.

    Attributes:
        text: the text.
        label: name of its file.
        tokens: number of tokens scored.
        own: digest of the domain's own expert, which a score is relative to; None if there is none.
        perplexity: of the composition.
        score: of the composition, if the domain has its own expert.
        accuracy: share of the tokens that are routed to the domain's expert, if that was measured.
        oracle: score with perfect routing, if that was measured.
        plain: score of the averaged weights of exactly its experts, if that was measured.
        interval: low and high end of the score's 95 % interval, if that was recorded.
        averages: of the evaluations that it is part of, or that found the same on the same text.
        losses: window by window, if they were recorded.
    """

    text: Text
    label: str
    tokens: int
    own: str | None
    perplexity: float | None
    score: float | None
    accuracy: float | None
    oracle: float | None
    plain: float | None
    interval: Sequence[float] | None = None
    averages: frozenset[Average] = frozenset()
    losses: PairedLoss | None = None

    @property
    def is_small(self) -> bool:
        """True if there are so few tokens that small differences can be chance."""
        return self.tokens < FEW_TOKENS


Found = Mapping[str, Sequence[Measured]]
"""Domain → what the evaluations of one composition found, the latest first."""


def found_in(evaluations: Sequence[EvaluationRecord], experts: Sequence[str]) -> dict[str, list[Measured]]:
    """Return what the evaluations, the latest first, of a composition of these experts found."""
    found: dict[str, list[Measured]] = {}
    for evaluation in evaluations:
        document = evaluation.document
        figures = document["figures"]
        oracle = (document["oracle"] or {}).get("score", {})
        plain = (document.get("plain_average") or {}).get("score", {})
        average = Average(frozenset(document["data"]), tuple(figures.get("average_interval") or ()) or None)
        for domain, data in document["data"].items():
            found.setdefault(domain, []).append(
                Measured(
                    Text.of(document, domain),
                    data["label"],
                    data["tokens"],
                    (document.get("experts") or {}).get(domain),
                    figures["perplexity"].get(domain),
                    figures["score"].get(domain),
                    figures["overall_accuracy"].get(domain),
                    oracle.get(domain),
                    plain.get(domain) if set(plain) == set(experts) else None,
                    figures.get("interval", {}).get(domain),
                    frozenset([average]),
                    losses_in(document, domain),
                )
            )
    return {domain: [_with_averages(one, each) for one in each] for domain, each in found.items()}


def _with_averages(measured: Measured, others: Sequence[Measured]) -> Measured:
    """Return figures with the averages of all evaluations that read the same text against the same expert."""
    same = [one for one in others if (one.text, one.own, one.score) == (measured.text, measured.own, measured.score)]
    return replace(measured, averages=frozenset().union(*(one.averages for one in same)))


@dataclass(frozen=True)
class Row:
    """A domain, on a text that two or more compositions read.

    Attributes:
        domain: its name.
        cells: what was found, one for each composition; None for one that did not read this text.
    """

    domain: str
    cells: Sequence[Measured | None]

    @property
    def read(self) -> list[Measured]:
        """The cells of those that read it."""
        return [cell for cell in self.cells if cell is not None]

    @property
    def scores_compare(self) -> bool:
        """True if the scores are relative to the same version of the domain's own expert."""
        return len({cell.own for cell in self.read}) == 1

    def of(self, figure: str) -> list[float | None]:
        """Return an attribute of every cell."""
        return [None if cell is None else getattr(cell, figure) for cell in self.cells]

    def of_intervals(self) -> list[Sequence[float] | None]:
        """Return the 95 % interval of every score."""
        return [None if cell is None else cell.interval for cell in self.cells]

    def scores(self) -> list[float | None]:
        """Return the scores, none if they do not compare."""
        return self.of("score") if self.scores_compare else [None] * len(self.cells)

    def ahead(self, first: int, second: int) -> tuple[float, float] | None:
        """Return the 95 % interval of how far one composition is ahead of another; None if it is not known."""
        return difference_interval(
            *([None if cell is None else cell.losses] for cell in (self.cells[first], self.cells[second]))
        )

    @property
    def is_unsure(self) -> bool:
        """True if the best score, or the lowest perplexity where scores do not compare, may be ahead by chance."""
        scores = self.scores()
        if any(score is not None for score in scores):
            return may_be_chance(scores, self.of_intervals(), self.ahead)
        lower = [None if value is None else -value for value in self.of("perplexity")]
        return may_be_chance(lower, [None] * len(lower), self.ahead)


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
            readers = {at for at, cell in enumerate(line.cells) if cell is not None}
            if len(readers) > 1 and not any(readers <= others for others in compared):
                compared.append(readers)
                rows.append(line)
    return rows


@dataclass(frozen=True)
class Mean:
    """Mean scores over the domains of which as many compositions as possible have scores that compare.

    Attributes:
        rows: the domains.
        scores: one for each composition; None for one that lacks a domain.
        oracle: the same with perfect routing.
        plain: the same of the averaged weights of its experts.
    """

    rows: Sequence[Row]
    scores: Sequence[float | None]
    oracle: Sequence[float | None]
    plain: Sequence[float | None]

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

    def ahead(self, first: int, second: int) -> tuple[float, float] | None:
        """Return the 95 % interval of how far one composition's mean is ahead of another's; None if it is not known."""
        both = ([row.cells[at] for row in self.rows] for at in (first, second))
        return difference_interval(*([None if cell is None else cell.losses for cell in cells] for cells in both))

    @property
    def is_unsure(self) -> bool:
        """True if the best mean may be ahead by chance."""
        return may_be_chance(self.scores, self.intervals, self.ahead)

    @property
    def over(self) -> str:
        """The domains in words: `mean of code and math`, `mean of code, law and 3 more domains`, `on code`."""
        domains = [row.domain for row in self.rows]
        more = " domains" if len(domains) > MOST_NAMED else ""
        return f"mean of {listed(domains)}{more}" if len(domains) > 1 else f"on {domains[0]}"


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


NOT_COMPARED = "They do not compare{yet}: no two were evaluated on the same text with the same settings."


def best(values: Sequence[float | None], *, least: bool = False, digits: int = 1) -> set[int]:
    """Return which values are best as they are shown; none if there are not two, or all are alike."""
    shown = {at: float(score_text(value, digits)) for at, value in enumerate(values) if value is not None}
    top = (min if least else max)(shown.values(), default=0.0)
    found = {at for at, value in shown.items() if value == top}
    return found if len(shown) > len(found) else set()


def may_be_chance(
    values: Sequence[float | None],
    intervals: Sequence[Sequence[float] | None],
    ahead: Callable[[int, int], tuple[float, float] | None],
) -> bool:
    """Tell whether the best value may be ahead of another by chance; False if nothing is known of its chance.

    Args:
        values: of compositions, the largest is best; None where there is none.
        intervals: 95 % interval of each, if known; they count only where their difference is not known.
        ahead: gives the 95 % interval of the difference of two values by their places, if known.
    """
    places = [at for at, value in enumerate(values) if value is not None]
    first = max(places, key=lambda at: values[at] or 0, default=0)
    return any(_is_chance(ahead(first, at), intervals[first], intervals[at]) for at in places if at != first)


def _is_chance(
    ahead: tuple[float, float] | None, first: Sequence[float] | None, second: Sequence[float] | None
) -> bool:
    """Tell whether the interval of a difference holds 0, or, where it is not known, two intervals overlap."""
    if ahead is not None:
        return ahead[0] <= 0
    return first is not None and second is not None and second[1] >= first[0]


def verdict(
    names: Sequence[str],
    found: Sequence[Found],
    rows: Sequence[Row],
    mean: Mean | None,
    experts: Sequence[Collection[str]] = (),
    *,
    final: bool = False,
) -> str:
    """Return which composition is better on the same text, and what that does not cover.

    Args:
        names: of the compositions.
        found: what the evaluations of each found.
        rows: domains of which several read the same text.
        mean: scores that compare; None if there are none.
        experts: names of the experts of each composition.
        final: new scores of one are not stored, because a member was opted out.
    """
    if mean is not None:
        return _by_score(names, mean) + _experts_missing(names, found, rows, mean, experts)
    if rows:
        return _by_perplexity(names, rows)
    if final:
        return NOT_COMPARED.format(yet="")
    reason = NOT_COMPARED.format(yet=" yet")
    return f"{reason} Evaluate them on the same files, with the same number and length of windows."


def _by_score(names: Sequence[str], mean: Mean) -> str:
    scored = {at: score_text(value) for at, value in enumerate(mean.scores) if value is not None}
    first = best(mean.scores)
    if not first:
        equal = listed([names[at] for at in scored])
        return f"{equal} are equal on the same text: {next(iter(scored.values()))}, {mean.over}."
    two = len(scored) == 2
    rest = [score if two else f"{score} of {names[at]}" for at, score in scored.items() if at not in first]
    rank = "ahead" if mean.is_unsure else "better" if two else "best"
    better = f"{'are' if len(first) > 1 else 'is'} {rank}"
    text = f"{listed([names[at] for at in sorted(first)])} {better} on the same text: {scored[min(first)]} against"
    lost = [row for row in mean.rows if (winners := best(row.scores())) and not first & winners]
    clear, unsure = ([row.domain for row in lost if row.is_unsure is doubt] for doubt in (False, True))
    rival = "the other" if two else "another"
    but = f"; on {listed(clear)} {rival} is better" if clear else ""
    but += f"; on {listed(unsure)} {rival} is ahead, which may be chance" if unsure else ""
    return f"{text} {listed(rest)}, {mean.over}{but}.{_by_chance(names, mean)}"


def uncovered(mean: Mean | None, experts: Sequence[Collection[str]]) -> list[str]:
    """Return the experts that the best composition lacks and others have, if the mean leaves out their domains.

    Args:
        mean: scores that compare; None if there are none.
        experts: names of the experts of each composition.
    """
    winners = best(mean.scores) if mean is not None else set()
    if mean is None or len(winners) != 1 or not experts:
        return []
    first, compared = min(winners), {row.domain for row in mean.rows}
    others = (expert for at, score in enumerate(mean.scores) if score is not None for expert in experts[at])
    return [expert for expert in dict.fromkeys(others) if expert not in {*experts[first], *compared}]


def readers(domain: str, found: Sequence[Found], rows: Sequence[Row]) -> set[int]:
    """Return the compositions that read the text of a domain to which others are to be added.

    It is the text that most of them read. Where several read a text each of its own, it is no one's.
    """
    row = next((row for row in rows if row.domain == domain), None)
    if row is not None:
        return {at for at, cell in enumerate(row.cells) if cell is not None}
    alone = {at for at, one in enumerate(found) if domain in one}
    return alone if len(alone) == 1 else set()


def _experts_missing(
    names: Sequence[str],
    found: Sequence[Found],
    rows: Sequence[Row],
    mean: Mean,
    experts: Sequence[Collection[str]],
) -> str:
    """Return which compositions have no expert of a domain that is compared, or of one that others have."""
    scored = [at for at, score in enumerate(mean.scores) if score is not None]
    left, by_lack = uncovered(mean, experts), dict[tuple[int, ...], list[str]]()
    for domain in [*(row.domain for row in mean.rows), *left]:
        if any(domain in known for known in experts):
            lack = tuple(at for at in scored if domain not in experts[at])
            by_lack.setdefault(lack, []).append(domain)
    text = ""
    for lack, domains in by_lack.items():
        if lack:
            have = "has" if len(lack) == 1 else "have"
            text += f" {listed([names[at] for at in lack])} {have} no expert of {listed(domains)}."
    for domain in left:
        read = sorted(readers(domain, found, rows))
        if read:
            text += f" On {domain}, {listed([names[at] for at in read])} {'was' if len(read) == 1 else 'were'} scored."
        else:
            several = any(domain in one for one in found)
            text += f" On {domain}, {'each was scored on other text' if several else 'none was scored'}."
    return text


def _by_chance(names: Sequence[str], mean: Mean) -> str:
    """Return whether the best one is ahead of the next by more than chance, where intervals are known."""
    order = sorted(
        (at for at, value in enumerate(mean.scores) if value is not None), key=lambda at: -(mean.scores[at] or 0)
    )
    first, second = order[:2]
    of_two = "" if len(order) == 2 else f" of {names[first]} and {names[second]}"
    ahead = mean.ahead(first, second)
    if ahead is not None:
        return f" {by_difference(ahead, names[first], names[second])}"
    said = by_chance(mean.interval(first), mean.interval(second), of_two)
    return f" {said}" if said else ""


def _by_perplexity(names: Sequence[str], rows: Sequence[Row]) -> str:
    wins = [best(row.of("perplexity"), least=True, digits=2) for row in rows]
    on = rows[0].domain if len(rows) == 1 else f"each of {len(rows)} domains"
    for at, name in enumerate(names):
        if all(win == {at} for win in wins):
            return f"{name} is better on the same text: its perplexity is the lowest on {on}. No scores compare."
    return "By perplexity none of them is better on all of the same text. No scores compare."


def apart(found: Sequence[Found], rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the latest figures that compare with none: which composition, domain, what was found, and why."""
    lines = []
    for at, one in enumerate(found):
        for domain, measured in one.items():
            if any(row.domain == domain and row.cells[at] is not None for row in rows):
                continue
            others = [(name, texts.get(domain)) for name, texts in zip(names, found, strict=True) if texts is not one]
            rivals = [(name, read[0].text) for name, read in others if read]
            lines.append({"at": at, "domain": domain, "cell": measured[0], "why": _why(measured[0].text, rivals)})
    return lines


def _why(text: Text, rivals: Sequence[tuple[str, Text]]) -> str:
    """Return why a text compares with none of the others' of its domain."""
    if not rivals:
        return "no other was evaluated on this domain"
    name, other = rivals[0]
    parts = [f"computed in {text.dtype}, not {other.dtype}"] if text.dtype != other.dtype else []
    if text.seq_len != other.seq_len:
        parts.append(f"windows of {text.seq_len:,} tokens, not {other.seq_len:,}")
    elif text.digest != other.digest:
        parts.append("other text, another number of windows, or another tokenizer")
    return f"unlike {name}: {'; '.join(parts)}"
