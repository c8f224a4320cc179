"""Changes of the Compose page's choices that mend what is wrong with them; each is tried before it is offered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from registry.composition import Preview, Recipe
from registry.composition.recipe.recipe_fields import DENSE, ENSEMBLE, HETERO, MOE, SIMOE
from registry.errors import RegError
from registry.ui.choices import CHOICES, default_text
from registry.ui.composing import Composing
from registry.ui.site import Site

MOST = 3
"""Changes that are offered at once."""

MOST_TRIED_MEMBERS = 32
"""Experts up to which changes are tried: each is planned."""

SECONDS = 2.0
"""Time after which no other change is tried. If one prediction takes longer, only the one from counts is tried."""
CHEAP = "context"

Predict = Callable[[Composing], tuple[Preview, float]]
"""Returns a prediction and the seconds that it took."""


@dataclass(frozen=True)
class Remedy:
    """A change that mends something.

    Attributes:
        label: what it does, for a button.
        composing: the changed choices.
        accuracy: the predicted routing accuracy with it, where that was predicted.
    """

    label: str
    composing: Composing
    accuracy: float | None = None


def for_error(site: Site, composing: Composing) -> list[Remedy]:
    """Return changes of choices that have no plan, with which they have one."""
    if len(composing.refs) > MOST_TRIED_MEMBERS:
        return []
    found, tried, end = list[Remedy](), set[str](), time.monotonic() + SECONDS
    for label, changed in _for_error(site, composing):
        if len(found) == MOST or time.monotonic() > end:
            break
        if label in tried or not changed.refs:
            continue
        tried.add(label)
        try:
            changed.plan(site)
        except RegError:
            continue
        found.append(Remedy(label, changed))
    return found


def for_preview(composing: Composing, predict: Predict) -> list[Remedy]:
    """Return changes with which fewer experts are drowned out or alike, and those that are left route better."""
    preview, seconds = predict(composing)
    wrong = _faults(preview)
    if not wrong:
        return []
    found, end = list[Remedy](), time.monotonic() + SECONDS
    for label, changed in _for_preview(composing, preview):
        if len(found) == MOST or time.monotonic() > end:
            break
        if seconds > SECONDS and changed.choices.texts["router"] != CHEAP:
            continue
        try:
            changed_preview, _ = predict(changed)
        except RegError:
            continue
        if _faults(changed_preview) < wrong and changed_preview.accuracy > preview.accuracy:
            found.append(Remedy(label, changed, changed_preview.accuracy))
    return sorted(found, key=lambda one: -(one.accuracy or 0.0))


def _faults(preview: Preview) -> int:
    return sum(member.drowned is not None for member in preview.members) + len(preview.indistinct)


def _for_error(site: Site, composing: Composing) -> Iterator[tuple[str, Composing]]:
    resolved: dict[str, str] = {}
    kept = composing
    for ref in composing.refs:
        try:
            resolved[ref] = site.registry.resolve(ref).ref
        except RegError:
            kept = kept.without(ref)
    if kept != composing:
        yield "Go on without it" if len(composing.refs) - len(kept.refs) == 1 else "Go on without them", kept
    names = [ref.partition("@")[0] for ref in resolved.values()]
    for given, ref in resolved.items():
        name = ref.partition("@")[0]
        if names.count(name) > 1:
            others = [one for one, other in resolved.items() if one != given and other.partition("@")[0] == name]
            changed = kept
            for other in others:
                changed = changed.without(other)
            yield f"Keep {ref} alone", changed
    for one in CHOICES:
        if one.name != "to" and kept.choices.texts[one.name] != default_text(one):
            yield f"Put “{one.label}” back", kept.having(**{one.name: default_text(one)})
    texts = kept.choices.texts
    for label, name, value in (
        ("Average the trunks", "trunk", "mean"),
        ("Use the context router", "router", "context"),
        ("Use the ridge router", "router", "ridge"),
        ("Write a modelling file", "remote_code", "1"),
        ("Make an ensemble of whole models", "to", ENSEMBLE),
        ("Make one of several architectures", "to", HETERO),
        ("Make a SIMoE", "to", SIMOE),
        ("Make a mixture", "to", MOE),
        ("Make one dense model", "to", DENSE),
    ):
        if texts[name] != value:
            yield label, kept.having(**{name: value})
    for ref in kept.refs if 1 < len(kept.refs) <= 8 else ():
        yield f"Go on without {ref}", kept.without(ref)


def _for_preview(composing: Composing, preview: Preview) -> Iterator[tuple[str, Composing]]:
    recipe = composing.choices.recipe()
    assert isinstance(recipe, Recipe)
    for router in (CHEAP, "ridge"):
        if recipe.router != router:
            yield f"Use the {router} router", composing.having(router=router)
    if recipe.balance == "none" and recipe.router != CHEAP:
        yield "Balance by tokens", composing.having(balance="tokens")
    if recipe.router == "ridge" and recipe.lam != "auto":
        yield "Choose the ridge strength by itself", composing.having(lam="auto")
    accuracy = {member.ref: member.accuracy for member in preview.members}
    drowned = [member.ref for member in preview.members if member.drowned is not None]
    for ref in dict.fromkeys([*drowned, *(min(pair, key=lambda ref: accuracy[ref]) for pair in preview.indistinct)]):
        if len(composing.refs) > 2:
            yield f"Go on without {ref}", composing.without(ref)
