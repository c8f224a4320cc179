"""Figures in words, for all pages: values, intervals, samples of text, and which of several scores is better."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from registry.evaluation.same_text import Found, Interval, Mean, Row, best, readers, uncovered
from registry.evaluation.stored import FEW_TOKENS, Text, score_text
from registry.io.display import counted

FEW_MEANS = f"below {FEW_TOKENS:,} tokens of a domain, a difference of a point can be chance"

OVER_100 = (
    "A score can exceed 100: what a model has from its other experts may help it to predict a domain’s text better "
    "than that domain’s own expert does."
)

INTERVAL_MEANS = (
    "The 95\u00a0% interval says how far a score could move on other text of the same kind, from 2,000 resamples of "
    "its windows."
)

MOST_NAMED = 3  # names up to which a sentence lists them all
_SHOWN = 0.05  # points from which on a difference does not round to 0.0

_PERCENT = re.compile(r"(?<=[0-9])%(?!\w)")
_BREAKABLE = re.compile(r"(?<=[0-9]) %(?!\w)")
_NOT_COMPARED = "They do not compare{yet}: no two were evaluated on the same text with the same settings."


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: `code`, `code and math`, `code, math and 3 more`."""
    shown = [*names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        shown = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def percent(score: float, digits: int = 1) -> str:
    """Return a share of 100 as sentences have it."""
    return f"{score_text(score, digits)} %"


def spaced(text: str) -> str:
    """Return a text of the library with its percentages as pages have them: `92 %`."""
    return _PERCENT.sub(" %", text)


def unbroken(text: str) -> str:
    """Return a text for a page, where no line may end before a percent sign: `spaced`, with no-break spaces."""
    return _BREAKABLE.sub("\u00a0%", spaced(text))


def interval_text(interval: Interval) -> str:
    """Return an interval of a score as all pages have it: `95.9 to 97.2`; empty for None."""
    return "" if interval is None else " to ".join(map(score_text, interval))


def sample(tokens: Collection[int]) -> str:
    """Return on how much text figures were measured, from the tokens of each domain: `12,288 tokens of 5 domains`."""
    return f"{counted(sum(tokens), 'token')} of {counted(len(tokens), 'domain')}"


def named_sample(tokens: Mapping[str, int]) -> str:
    """Return a sample (domain → tokens) with the name of a single domain: `4,096 tokens of one domain, code`."""
    one = f"{sum(tokens.values()):,} tokens of one domain, {''.join(tokens)}"
    return one if len(tokens) == 1 else sample(tokens.values())


def evaluation_text(document: Mapping[str, Any]) -> str:
    """Return what the document of an evaluation scored, and its score: `on code; 48 windows a domain; score 97.1`."""
    average, data, settings = document["figures"]["average"], document["data"], document["settings"]
    predicted = settings["windows"] * (settings["seq_len"] - 1)  # the first token of a window is not predicted
    fewer = "up to " if min(text["tokens"] for text in data.values()) < predicted else ""
    words = [f"on {', '.join(data)}", f"{fewer}{counted(settings['windows'], 'window')} a domain"]
    return "; ".join(words + ([] if average is None else [f"score {score_text(average)}"]))


def chance(ahead: Interval, first: Interval, second: Interval, name: str, other: str, of: str = "") -> str:
    """Return whether one score is ahead of another by more than chance: a sentence; empty if that is not known.

    `ahead` is the 95 % interval of the first score less the second, on the same windows, in points. It decides where it
    is known; else the intervals of both do, which may overlap although the scores differ. `of` says whose these are.
    """
    if ahead is not None:
        is_behind = ahead[1] < 0
        ends = sorted(-end for end in ahead) if is_behind else ahead
        digits = 1 if all(abs(end) >= _SHOWN for end in ends) else 2
        texts = (score_text(0.0 if round(end, digits) == 0 else end, digits).replace("-", "−") for end in ends)
        meant = "this is more than chance" if ends[0] > 0 else "this may be chance"
        difference = f"{'behind' if is_behind else 'ahead of'} {other} by {' to '.join(texts)} points"
        return f"On the same windows {name} is {difference} (95\u00a0% interval): {meant}."
    if first is None or second is None:
        return ""
    shown = f"{interval_text(first)} and {interval_text(second)}"
    apart = first[0] > second[1] or second[0] > first[1]
    meant = "do not overlap: the difference is more than chance" if apart else "overlap: the difference may be chance"
    return f"The 95\u00a0% intervals{of}, {shown}, {meant}."


def chance_of_average(ahead: Interval, own: Interval, plain: Interval, name: str) -> str:
    """Return whether a composition, called `name`, and its averaged weights differ by more than chance (`chance`)."""
    return chance(ahead, own, plain, name, "averaged weights", f" of {name} and of averaged weights")


def which_is_better(
    names: Sequence[str],
    found: Sequence[Found],
    rows: Sequence[Row],
    mean: Mean | None,
    experts: Sequence[Collection[str]] = (),
    *,
    final: bool = False,
) -> str:
    """Return which composition is better on the same text, and what that does not cover.

    `found`: by the evaluations of each; `rows`: domains of which several read the same text; `mean`: scores that
    compare; `experts`: names of those of each; `final`: new scores are not stored, because a member was opted out.
    """
    if mean is not None:
        return _by_score(names, mean) + _experts_missing(names, found, rows, mean, experts)
    if rows:
        return _by_perplexity(names, rows)
    if final:
        return _NOT_COMPARED.format(yet="")
    reason = _NOT_COMPARED.format(yet=" yet")
    return f"{reason} Evaluate them on the same files, with the same number and length of windows."


def _by_score(names: Sequence[str], mean: Mean) -> str:
    scored = {at: score_text(mean.scores[at]) for at in mean.scored}
    domains = [row.domain for row in mean.rows]
    more = " domains" if len(domains) > MOST_NAMED else ""
    over = f"mean of {listed(domains)}{more}" if len(domains) > 1 else f"on {domains[0]}"
    winners = best(mean.scores)
    if not winners:
        equal = listed([names[at] for at in scored])
        return f"{equal} are equal on the same text: {next(iter(scored.values()))}, {over}."
    two = len(scored) == 2
    rest = [score if two else f"{score} of {names[at]}" for at, score in scored.items() if at not in winners]
    rank = "ahead" if mean.is_unsure else "better" if two else "best"
    better = f"{'are' if len(winners) > 1 else 'is'} {rank}"
    text = f"{listed([names[at] for at in sorted(winners)])} {better} on the same text: {scored[min(winners)]} against"
    lost = [row for row in mean.rows if (ahead := best(row.scores())) and not winners & ahead]
    clear, unsure = ([row.domain for row in lost if row.is_unsure is doubt] for doubt in (False, True))
    rival = "the other" if two else "another"
    but = f"; on {listed(clear)} {rival} is better" if clear else ""
    but += f"; on {listed(unsure)} {rival} is ahead, which may be chance" if unsure else ""
    first, second = sorted(scored, key=lambda at: -(mean.scores[at] or 0))[:2]
    said = chance(
        mean.ahead(first, second),
        mean.interval(first),
        mean.interval(second),
        names[first],
        names[second],
        "" if two else f" of {names[first]} and {names[second]}",
    )
    return f"{text} {listed(rest)}, {over}{but}.{f' {said}' if said else ''}"


def _experts_missing(
    names: Sequence[str], found: Sequence[Found], rows: Sequence[Row], mean: Mean, experts: Sequence[Collection[str]]
) -> str:
    """Return which compositions have no expert of a domain that is compared, or of one that others have."""
    left, by_lack = uncovered(mean, experts), dict[tuple[int, ...], list[str]]()
    for domain in [*(row.domain for row in mean.rows), *left]:
        if any(domain in known for known in experts):
            lack = tuple(at for at in mean.scored if domain not in experts[at])
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


def _by_perplexity(names: Sequence[str], rows: Sequence[Row]) -> str:
    wins = [best(row.of("perplexity"), least=True, digits=2) for row in rows]
    on = rows[0].domain if len(rows) == 1 else f"each of {len(rows)} domains"
    for at, name in enumerate(names):
        if all(win == {at} for win in wins):
            return f"{name} is better on the same text: its perplexity is the lowest on {on}. No scores compare."
    return "By perplexity none of them is better on all of the same text. No scores compare."


def why_apart(text: Text, rival: tuple[str, Text] | None) -> str:
    """Return why a text compares with none of its domain; `rival` is the first of these, with its composition."""
    if rival is None:
        return "no other was evaluated on this domain"
    name, other = rival
    parts = [f"computed in {text.dtype}, not {other.dtype}"] if text.dtype != other.dtype else []
    if text.seq_len != other.seq_len:
        parts.append(f"windows of {text.seq_len:,} tokens, not {other.seq_len:,}")
    elif text.digest != other.digest:
        parts.append("other text, another number of windows, or another tokenizer")
    return f"unlike {name}: {'; '.join(parts)}"
