"""The verdict of a report in a sentence or two, and its warnings, each with the command that mends it."""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from registry.composition.found import OUTPUTS
from registry.composition.method import Target
from registry.evaluation.stored import score_text
from registry.report.data import ReportData, RoutingData, ScoreRow, Verdict, Warned
from registry.report.score_words import (
    FEW_MEANS,
    chance_of_average,
    interval_text,
    listed,
    named_sample,
    percent,
    spaced,
)

PLACE = "DIR"  # what commands name where a folder is to be chosen, or none is known

_DEFAULTS = {"to": OUTPUTS.default.name, "trunk": "regmean", "router": "context"}

CONTEXT = "context"  # the router that reads the text so far, which separates domains best
DROWNED = 0.5  # an expert that gets less than this share of its own domain's tokens loses its text to the others
CONFUSED = 0.25  # share of a domain's tokens from which on another expert that gets them is worth a warning
UNEVEN = 0.25
"""How far an expert's share of all tokens may exceed the share of its domain's text; a quarter of all tokens."""

COST = 3.0  # points between perfect routing and the composition from which on routing is worth mending


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
    on = named_sample(figures.evaluated.tokens)
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
    differs = chance_of_average(
        own.ahead_of_average if plain is not None else None,
        own.average_interval,
        None if plain is None else plain.average_interval,
        f"the {figures.kind}",
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


def advice(figures: ReportData) -> tuple[Warned, ...]:
    """Return what is wrong with the composition, the gravest first; what one command mends is one warning."""
    warned: set[frozenset[str]] = set()  # pairs of experts
    refs = list(dict.fromkeys(member.opted_out for member in figures.members if member.opted_out))
    left = [member.name for member in figures.members if not member.opted_out and figures.from_base is None]
    found = [opted_out(refs, left, {**figures.recipe, "to": figures.to})] if refs else []
    found += _sample(figures)
    average = figures.score_of("average")
    if worse := worse_than_average(figures.score_of("composition"), average, figures.output, figures.experts):
        found.append(worse)
    if figures.output.is_routed and figures.has_domains:
        found += _drowned(figures, warned)
        for first, second, text in (*_confused(figures), *_overlapping(figures)):
            pair = frozenset((first, second))
            if pair not in warned:
                found.append(Warned(text, *_separation(figures, first, second)))
                warned.add(pair)
    if not warned:
        found += [*_uneven(figures), *_costly_routing(figures)]
    texts: dict[tuple[str, str | None], list[str]] = {}
    for one in found:
        texts.setdefault((one.mend, one.command), []).append(one.text)
    return tuple(Warned(" ".join(text), mend, command) for (mend, command), text in texts.items())


def opted_out(refs: Sequence[str], left: Sequence[str], recipe: Mapping[str, Any]) -> Warned:
    """Return the warning of opted-out versions (`refs`); `left` are the others, if they can be composed."""
    text = f"{listed(refs)} {'were' if len(refs) > 1 else 'was'} opted out after this was composed."
    if not left:
        return Warned(text, "Delete this composition.")
    if len(left) == 1:
        return Warned(text, f"Delete this composition; {left[0]} alone is left of it.")
    return Warned(text, "Compose the others alone, and delete this one.", recipe_command(recipe, left))


def _sample(figures: ReportData) -> Iterator[Warned]:
    evaluated = figures.evaluated
    if evaluated is None or figures.row("composition") is None:
        return
    missing = [name for name in figures.experts if name not in evaluated.tokens]
    wrong, mend = list[str](), ""
    if evaluated.is_small:
        least = min(evaluated.tokens.values())
        text = f"Few tokens: {named_sample(evaluated.tokens)}" + (
            f", the smallest of {least:,} tokens" if len(evaluated.tokens) > 1 else ""
        )
        wrong.append(f"{text}; {FEW_MEANS}.")
        mend = "Evaluate on more text."
    if figures.has_domains and 0 < len(missing) < len(figures.experts):
        text = f"One of {len(figures.experts)} members is not evaluated on its own domain: "
        if len(missing) > 1:
            text = f"{len(missing)} of {len(figures.experts)} members are not evaluated on their own domains: "
        mend = f"Evaluate on {'more text,' if wrong else 'text'} of every member's domain."
        wrong.append(f"{text}{listed(missing)}.")
    if wrong:  # the same command mends both
        yield Warned(" ".join(wrong), mend, evaluation_command(figures))


def worse_than_average(
    own: float | None, average: float | None, output: Target, experts: Sequence[str]
) -> Warned | None:
    """Return the warning that averaged weights of exactly its experts score better; None if not, or not known."""
    if own is None or average is None or own >= average or not output.is_routed:
        return None
    text = f"Averaged weights are better: {percent(average)} against {percent(own)}."
    simple = recipe_command({}, experts, "--to", "dense", "--trunk", "mean")
    return Warned(text, "The average is one dense model, and smaller: compose it.", simple)


def _drowned(figures: ReportData, warned: set[frozenset[str]]) -> Iterator[Warned]:
    """Yield members that get less than half of their own text: as measured, or else as predicted."""
    routing = figures.routing
    for member in figures.members:
        name = member.name
        if routing is not None and routing.measured and name in routing.accuracy:
            share = routing.accuracy[name]
            if share >= DROWNED or len(figures.members) < 2:
                continue
            taker, taken = _taker(routing, name)
            only = f"only {percent(100 * share)} of its own domain's tokens go to it"
            text = f"{name} loses its own text: {only}; {taker} gets {percent(100 * taken)}."
            yield Warned(text, *_separation(figures, name, taker))
            warned.add(frozenset((name, taker)))
        elif member.drowned:
            taker = _taker(routing, name)[0] if routing else ""
            text = f"{name} is predicted to lose its own text: {spaced(member.drowned.partition(': try ')[0])}."
            if "--balance" in member.drowned:
                yield Warned(text, "Balance the members' statistics.", compose_command(figures, "--balance", "tokens"))
            else:
                yield Warned(text, *_separation(figures, name, taker))
            warned.add(frozenset((name, taker)))


def _confused(figures: ReportData) -> Iterator[tuple[str, str, str]]:
    """Yield a domain, another expert that gets much of its text, and the warning."""
    routing = figures.routing
    for domain, expert, share in routing.confused if routing else ():
        if share >= CONFUSED and domain in figures.experts:
            goes = "goes" if routing and routing.measured else "is predicted to go"
            yield domain, expert, f"{percent(100 * share)} of {domain}'s text {goes} to {expert}."


def _overlapping(figures: ReportData) -> Iterator[tuple[str, str, str]]:
    """Yield two experts whose text is too alike, and the warning, unless routing was measured to separate them."""
    routing = figures.routing
    measured = routing.accuracy if routing and routing.measured else {}
    for first, second, share in sorted(figures.overlap, key=lambda pair: -pair[2]):
        separated = all(measured.get(name, 0.0) >= 1 - CONFUSED for name in (first, second))
        if share < figures.indistinct or separated:
            continue
        of = ("token counts", "texts") if figures.recipe.get("router") == CONTEXT else ("activations", "tokens")
        alike = f"{percent(100 * share, 0)} of their {of[1]} cannot be told apart"
        yield first, second, f"{first} and {second} overlap in {of[0]}: {alike}."


def _uneven(figures: ReportData) -> Iterator[Warned]:
    """Yield the expert that gets far more tokens than there is text of its domain, and those that get hardly any."""
    routing = figures.routing
    is_routed = figures.output.is_routed and figures.output.has_domains
    if routing is None or len(routing.load) < 2 or not is_routed:
        return
    load = routing.overall_load
    expected = _expected(figures, load)
    for expert in expected:
        if (share := load[expert]) - expected[expert] >= UNEVEN:
            even = percent(100 * expected[expert])
            text = f"Load collapses onto {expert}: it gets {percent(100 * share)} of all tokens, where {even} is even."
            if figures.from_base is not None or figures.recipe.get("router") == "random":
                mend = "Train it: the loss of reg train keeps the load even."
                yield Warned(text, mend, command("train", figures.folder or PLACE, "--data", "FILE", "--out", PLACE))
            else:
                yield Warned(text, *_separation(figures, expert, expert))


def _costly_routing(figures: ReportData) -> Iterator[Warned]:
    own, oracle = figures.score_of("composition"), figures.score_of("oracle")
    found = figures.output.separating(figures.recipe, None, len(figures.members))
    if own is None or oracle is None or oracle - own < COST or found is None:
        return
    text = f"Routing costs {oracle - own:.1f} points: perfect routing would reach {percent(oracle)}."
    yield Warned(text, found[0], compose_command(figures, *found[1]))


def _separation(figures: ReportData, first: str, second: str) -> tuple[str, str | None]:
    """Return what helps where routing does not separate two members, and its command."""
    if found := figures.output.separating(figures.recipe, figures.top_k, len(figures.members)):
        return found[0], compose_command(figures, *found[1])
    left = [name for name in figures.experts if name != (second if first == second else first)]
    if len(left) < 2:
        return "Compose them only if both are needed.", None
    return "Leave one of the two out.", compose_command(figures, experts=left)


def _expected(figures: ReportData, load: Mapping[str, float]) -> dict[str, float]:
    """Return expert → its share of all tokens if each text went to its own expert; empty if texts are of others."""
    routing, evaluated = figures.routing, figures.evaluated
    if figures.from_base is not None or routing is None or not routing.measured or evaluated is None:
        return dict.fromkeys(load, 1 / len(load))
    if not set(evaluated.tokens) <= set(load):
        return {}
    total = sum(evaluated.tokens.values())
    return {expert: evaluated.tokens.get(expert, 0) / total for expert in load}


def _taker(routing: RoutingData, domain: str) -> tuple[str, float]:
    """Return the other expert that gets most of a domain's tokens, and its share."""
    return max(
        ((expert, routing.mean(domain, expert)) for expert in routing.shares.get(domain, {}) if expert != domain),
        key=lambda pair: pair[1],
        default=("", 0.0),
    )


def evaluation_command(figures: ReportData) -> str:
    """Return the command that evaluates the composition on text of all its domains."""
    evaluated = list(figures.evaluated.tokens) if figures.evaluated else []
    own = figures.has_domains and (not evaluated or not set(evaluated).isdisjoint(figures.experts))
    domains = figures.experts if own else evaluated or ("DOMAIN",)
    baselines = ["--baselines"] if figures.has_domains else []
    oracle = ["--oracle"] if figures.output.has_oracle and figures.has_domains else []
    data = [word for domain in domains for word in ("--data", f"{domain}=FILE")]
    return command("evaluate", figures.folder or PLACE, *data, *baselines, *oracle)


def compose_command(figures: ReportData, *options: str, experts: Sequence[str] = ()) -> str:
    """Return the command that composes the members, or other experts, with other options."""
    return recipe_command({**figures.recipe, "to": figures.to}, experts or figures.experts, *options)


def recipe_command(recipe: Mapping[str, Any], experts: Sequence[str], *options: str) -> str:
    """Return the command that composes experts by the methods of a recipe, but for the options."""
    made = {key: recipe.get(key) for key in _DEFAULTS}
    kept = [(f"--{key}", value) for key, value in made.items() if value and value != _DEFAULTS[key]]
    same = [word for option, value in kept if option not in options for word in (option, value)]
    return command("compose", "--experts", ",".join(experts), *same, *options, "--out", PLACE)


def command(*words: str) -> str:
    """Return a command as it is typed."""
    return shlex.join(["reg", *words])
