"""The verdict of a report: how good the composition is, in a sentence or two, and on how much text."""

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from registry.report.data import Evaluated, ReportData, ScoreRow, Verdict

FEW_TOKENS = 2000
"""Predicted tokens of a domain below which its score is uncertain: pages say so, and how many would be enough."""

FEW_MEANS = f"below {FEW_TOKENS:,} tokens of a domain, a difference of a point can be chance"
"""What few tokens mean, in words."""

OVER_100 = (
    "A score can exceed 100: what a model has from its other experts may help it to predict a domain’s text better "
    "than that domain’s own expert does."
)
"""Why scores over 100 are no mistake."""

INTERVAL_MEANS = (
    "The 95\u00a0% interval says how far a score could move on other text of the same kind, from 2,000 resamples of "
    "its windows."
)
"""What an interval of a score means."""

_PERCENT = re.compile(r"(?<=[0-9])%(?!\w)")
_BREAKABLE = re.compile(r"(?<=[0-9]) %(?!\w)")

PLACE = "DIR"
"""What commands name where a folder is to be chosen, or none is known."""

_SHOWN = 0.05
"""Points from which on a difference does not round to 0.0."""

_DEFAULTS = {"to": "moe", "trunk": "regmean", "router": "context"}

MOST_NAMED = 3
"""Names up to which a sentence lists them all."""


def verdict(figures: ReportData) -> Verdict:
    """Return how much of its experts the composition reaches, or how to find out."""
    own = figures.row("composition")
    if own is None or figures.evaluated is None:
        if gone := [member.opted_out for member in figures.members if member.opted_out]:
            were = "was" if len(gone) == 1 else "were"
            text = f"No score is stored, and none will be: {', '.join(gone)} {were} opted out."
            return Verdict(f"{text} A purge deletes the scores of what was made from a member.")
        text = f"Not evaluated yet: reg evaluate shows how good this {figures.kind} is."
        return Verdict(f"{text}{_predicted(figures)}", evaluation_command(figures))
    on = sample(figures.evaluated)
    if not own.score:
        return Verdict(f"{_perplexities(figures, own)} on {on}. {_unscored(list(own.perplexity))}")
    scored = list(own.score)
    mean = sum(own.score.values()) / len(scored)
    whose = "its experts" if set(scored) <= set(figures.experts) else "the domains' own experts"
    if len(scored) == 1:
        whose = f"its expert {scored[0]}" if scored[0] in figures.experts else f"expert {scored[0]}"
    known = own.average_interval is not None and own.average is not None
    between = f" ({interval_text(own.average_interval)})" if known else ""
    parts = [f"The {figures.kind} reaches {percent(mean)}{between} of {whose} on {on}"]
    if own.average is not None:
        average, oracle = figures.score_of("average"), figures.score_of("oracle")
        parts += [f"averaged weights reach {percent(average)}"] if average is not None else []
        if oracle is not None:
            parts.append(f"perfect routing would reach {percent(oracle)}{_losses(own.average, oracle)}")
    left = [domain for domain in own.perplexity if domain not in own.score]
    plain = figures.row("average")
    differs = chance(
        own.average_interval,
        None if plain is None else plain.average_interval,
        f"the {figures.kind}",
        own.ahead_of_average if plain is not None else None,
    )
    said = ["; ".join(parts) + ".", differs]
    return Verdict(" ".join(filter(None, [*said, _unscored(left) if left else ""])))


def _losses(own: float, oracle: float) -> str:
    """Return what is lost by routing and what by sharing the weights that are not experts, in points as shown."""
    shown = [Decimal(score_text(score)) for score in (own, oracle, 100.0)]
    routing, sharing = (max(Decimal(0), after - before) for before, after in itertools.pairwise(shown))
    if not routing and not sharing:
        return ""
    costs = "no point" if not routing else f"{routing} point{'' if routing == 1 else 's'}"
    return f", so routing costs {costs} and the shared weights {sharing or 'none'}"


def chance(
    own: Sequence[float] | None, plain: Sequence[float] | None, name: str, ahead: Sequence[float] | None = None
) -> str:
    """Return whether a composition and its averaged weights differ by more than chance.

    Args:
        own: low and high end of the 95 % interval of the composition's average score; None if they are not known.
        plain: that of the averaged weights.
        name: what the composition is called.
        ahead: the interval of the difference of the two; None if it is not known.

    Returns:
        A sentence; empty if neither the difference nor both intervals are known.
    """
    if ahead is not None:
        return by_difference(ahead, name, "averaged weights")
    return by_chance(own, plain, f" of {name} and of averaged weights")


def by_difference(ahead: Sequence[float], name: str, other: str) -> str:
    """Return how far one is ahead of another on the same windows of text, and whether that may be chance: a sentence.

    Args:
        ahead: low and high end of the 95 % interval of the first score less the second, in points.
        name: what the first is called.
        other: what the second is called.
    """
    is_behind = ahead[1] < 0
    ends = sorted(-end for end in ahead) if is_behind else ahead
    digits = 1 if all(abs(end) >= _SHOWN for end in ends) else 2
    shown = " to ".join(score_text(0.0 if round(end, digits) == 0 else end, digits).replace("-", "−") for end in ends)
    meant = "this is more than chance" if ends[0] > 0 else "this may be chance"
    place = "behind" if is_behind else "ahead of"
    return f"On the same windows {name} is {place} {other} by {shown} points (95\u00a0% interval): {meant}."


def by_chance(first: Sequence[float] | None, second: Sequence[float] | None, of: str = "") -> str:
    """Return whether two scores differ by more than chance, by their 95 % intervals: one sentence.

    Two intervals that do not overlap differ by more than chance; two that do may still differ, because they are of
    the same windows: `by_difference` decides where that is known.

    Args:
        first: low and high end of one, of scores out of 100; None if they are not known.
        second: those of the other.
        of: whose they are, in words that begin with a space.

    Returns:
        The sentence; empty if one of the intervals is not known.
    """
    if first is None or second is None:
        return ""
    shown = f"{interval_text(first)} and {interval_text(second)}"
    apart = first[0] > second[1] or second[0] > first[1]
    meant = "do not overlap: the difference is more than chance" if apart else "overlap: the difference may be chance"
    return f"The 95\u00a0% intervals{of}, {shown}, {meant}."


def sample(evaluated: Evaluated) -> str:
    """Return on how much text figures were measured: `12,288 tokens of 5 domains`."""
    tokens = f"{sum(evaluated.tokens.values()):,} tokens"
    if len(evaluated.tokens) == 1:
        return f"{tokens} of one domain, {next(iter(evaluated.tokens))}"
    return f"{tokens} of {len(evaluated.tokens)} domains"


def is_small(evaluated: Evaluated) -> bool:
    """Tell whether some domain has so few tokens that its score is uncertain."""
    return min(evaluated.tokens.values(), default=FEW_TOKENS) < FEW_TOKENS


def evaluation_command(figures: ReportData) -> str:
    """Return the command that evaluates the composition on text of all its domains."""
    evaluated = list(figures.evaluated.tokens) if figures.evaluated else []
    own = has_domains(figures) and (not evaluated or not set(evaluated).isdisjoint(figures.experts))
    domains = figures.experts if own else evaluated or ("DOMAIN",)
    baselines = ["--baselines"] if has_domains(figures) else []
    oracle = ["--oracle"] if figures.to == "moe" and has_domains(figures) else []
    data = [word for domain in domains for word in ("--data", f"{domain}=FILE")]
    return command("evaluate", figures.folder or PLACE, *data, *baselines, *oracle)


def has_domains(figures: ReportData) -> bool:
    """Tell whether its members stand for domains, unlike copies of a base model and experts of a SIMoE."""
    return figures.from_base is None and figures.to != "simoe"


def compose_command(figures: ReportData, *options: str, experts: Sequence[str] = (), plain: bool = False) -> str:
    """Return the command that composes the members in another way.

    Args:
        figures: of the composition.
        options: what is different.
        experts: the members; by default all.
        plain: leave out how this composition was made.
    """
    recipe = {} if plain else {**figures.recipe, "to": figures.to}
    return recipe_command(recipe, experts or figures.experts, *options)


def recipe_command(recipe: Mapping[str, Any], experts: Sequence[str], *options: str) -> str:
    """Return the command that composes experts by the methods of a recipe, but for the options."""
    made = {key: recipe.get(key) for key in _DEFAULTS}
    kept = [(f"--{key}", value) for key, value in made.items() if value and value != _DEFAULTS[key]]
    same = [word for option, value in kept if option not in options for word in (option, value)]
    return command("compose", "--experts", ",".join(experts), *same, *options, "--out", PLACE)


def command(*words: str) -> str:
    """Return a command as it is typed."""
    return shlex.join(["reg", *words])


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: `code`, `code and math`, `code, math and 3 more`."""
    shown = [*names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        shown = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _predicted(figures: ReportData) -> str:
    routing = figures.routing
    if routing is None or routing.measured or not routing.accuracy:
        return ""
    share = sum(routing.accuracy.values()) / len(routing.accuracy)
    return f" From statistics alone, {percent(100 * share)} of its experts' text is predicted to reach its own expert."


def _perplexities(figures: ReportData, own: ScoreRow) -> str:
    values = sorted((value, domain) for domain, value in own.perplexity.items())
    if len(values) == 1:
        return f"The {figures.kind} has a perplexity of {values[0][0]:.2f}"
    (least, first), (most, last) = values[0], values[-1]
    return f"The {figures.kind} has perplexities from {least:.2f} ({first}) to {most:.2f} ({last})"


def _unscored(domains: Sequence[str]) -> str:
    if len(domains) == 1:
        return f"There is no score for {domains[0]}: no expert of this name is registered here."
    return f"There are no scores for {listed(domains)}: no experts of these names are registered here."


def spaced(text: str) -> str:
    """Return a text of the library with its percentages as pages have them: `92 %`."""
    return _PERCENT.sub(" %", text)


def unbroken(text: str) -> str:
    """Return a text for a page, where no line may end before a percent sign: `spaced`, with no-break spaces."""
    return _BREAKABLE.sub("\u00a0%", spaced(text))


def percent(score: float, digits: int = 1) -> str:
    """Return a share of 100 as sentences have it."""
    return f"{score_text(score, digits)} %"


def interval_text(interval: Sequence[float] | None, digits: int = 1) -> str:
    """Return an interval of a score as all pages have it: `95.9 to 97.2`; empty for None."""
    return "" if interval is None else " to ".join(score_text(end, digits) for end in interval)


def score_text(score: float | int | None, digits: int = 1) -> str:
    """Return a score as all pages have it, halves rounded up as charts round them: `99.7`; a dash for None."""
    if score is None:
        return "–"
    if not math.isfinite(score):
        return f"{score:.{digits}f}"
    return str(Decimal(score).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
