"""Changes of the Compose page's choices that mend what is wrong with them; each is tried before it is offered.

An expert that is unknown is only left out, whatever is wrong beside that.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from registry.composition import Preview
from registry.composition.found import OUTPUTS, ROUTERS
from registry.composition.method import COUNTS, OWN
from registry.errors import RegError
from registry.ui.composer.choices import CHOICES, default_text
from registry.ui.composer.composing import Composing
from registry.ui.site import Site

MOST = 3  # changes that are offered at once
MOST_TRIED_MEMBERS = 32  # experts up to which changes are tried: each is planned
SECONDS = 2.0
"""Time after which no other change is tried. If one prediction takes longer, only the one from counts is tried."""
SOLVED = [name for name, one in ROUTERS.items() if one.statistics in (COUNTS, OWN)]
"""Routers that are made from the experts' own statistics, the cheapest to predict first."""
CHEAP = SOLVED[0]

Predict = Callable[[Composing], tuple[Preview, float]]  # returns a prediction and the seconds that it took


@dataclass(frozen=True)
class Remedy:
    """A change that mends something: a label for a button, the changed choices, and the routing accuracy predicted."""

    label: str
    composing: Composing
    accuracy: float | None = None


def for_error(site: Site, composing: Composing) -> list[Remedy]:
    """Return changes of choices that have no plan, with which they have one."""
    if len(composing.refs) > MOST_TRIED_MEMBERS:
        return []
    resolved = {given: version.ref for given, version in composing.resolved(site).items()}
    unknown = [ref for ref in composing.refs if ref not in resolved]
    if unknown:  # whatever else is wrong is seen without them
        return [Remedy("Go on without it" if len(unknown) == 1 else "Go on without them", composing.without(*unknown))]
    tried = set[str]()

    def tested(label: str, changed: Composing) -> Remedy | None:
        if not changed.refs or tried & {label, changed.address}:
            return None
        tried.update((label, changed.address))
        changed.plan(site)
        return Remedy(label, changed)

    return _working(_for_error(composing, resolved), tested)


def for_preview(composing: Composing, predict: Predict) -> list[Remedy]:
    """Return changes with which fewer experts lose their text or are alike, and those that are left route better."""
    preview, seconds = predict(composing)
    wrong = _faults(preview)
    if not wrong:
        return []

    def tested(label: str, changed: Composing) -> Remedy | None:
        if seconds > SECONDS and changed.choices.texts["router"] != CHEAP:
            return None
        found, _ = predict(changed)
        is_better = _faults(found) < wrong and found.accuracy > preview.accuracy
        return Remedy(label, changed, found.accuracy) if is_better else None

    found = _working(_for_preview(composing, preview), tested)
    return sorted(found, key=lambda one: -(one.accuracy or 0.0))


def _working(
    changes: Iterable[tuple[str, Composing]], tested: Callable[[str, Composing], Remedy | None]
) -> list[Remedy]:
    """Return the first changes that pass a test, at most `MOST`, as far as `SECONDS` allow."""
    found, end = list[Remedy](), time.monotonic() + SECONDS
    for label, changed in changes:
        if len(found) == MOST or time.monotonic() > end:
            break
        with suppress(RegError):
            if remedy := tested(label, changed):
                found.append(remedy)
    return found


def _faults(preview: Preview) -> int:
    return sum(member.drowned is not None for member in preview.members) + len(preview.indistinct)


def _for_error(composing: Composing, resolved: Mapping[str, str]) -> Iterator[tuple[str, Composing]]:
    names = [ref.partition("@")[0] for ref in resolved.values()]
    for given, ref in resolved.items():
        name = ref.partition("@")[0]
        if names.count(name) > 1:
            others = [one for one, other in resolved.items() if one != given and other.partition("@")[0] == name]
            dropped = dict.fromkeys(resolved[other] for other in others if resolved[other] != ref)
            label = f"Keep {ref}, drop {' and '.join(dropped)}" if dropped else f"Keep {ref} once"
            yield label, composing.without(*others)
    for one in CHOICES:
        if one.name != "to" and composing.choices.texts[one.name] != default_text(one):
            yield f"Put “{one.label}” back", composing.having(**{one.name: default_text(one)})
    texts = composing.choices.texts
    for label, name, value in (
        ("Average the trunks", "trunk", "mean"),
        *((f"Use the {router} router", "router", router) for router in SOLVED),
        ("Write a modelling file", "remote_code", "1"),
        *((f"Make {one.words}", "to", name) for name, one in OUTPUTS.items()),
    ):
        if texts[name] != value:
            yield label, composing.having(**{name: value})
    for ref in composing.refs if 1 < len(composing.refs) <= 8 else ():
        yield f"Go on without {ref}", composing.without(ref)


def _for_preview(composing: Composing, preview: Preview) -> Iterator[tuple[str, Composing]]:
    recipe = composing.choices.recipe()
    for router in SOLVED:
        if recipe.router != router:
            yield f"Use the {router} router", composing.having(router=router)
    if recipe.balance == "none" and recipe.router != CHEAP:
        yield "Balance by tokens", composing.having(balance="tokens")
    accuracy = {member.ref: member.accuracy for member in preview.members}
    drowned = [member.ref for member in preview.members if member.drowned is not None]
    for ref in dict.fromkeys([*drowned, *(min(pair, key=lambda ref: accuracy[ref]) for pair in preview.indistinct)]):
        if len(composing.refs) > 2:
            yield f"Go on without {ref}", composing.without(ref)
