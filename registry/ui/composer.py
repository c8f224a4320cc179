"""The composer: a page that plans a composition as experts are ticked, and shows the command that makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from registry import composition
from registry.composition import Recipe
from registry.composition.recipe.recipe_fields import MOE, FieldKind
from registry.errors import InvalidInputError, RegError
from registry.ui.choices import CHOICES, Choices, default_text, select_values
from registry.ui.site import PART, Site, url
from store.catalog import VersionRecord
from store.catalog.records import Kind

OFFERED = 40
"""Experts that are offered beside those ticked; a search finds others."""

MOST = 256
"""Experts that can be ticked."""

OUT = "moe/"


@dataclass(frozen=True)
class Result:
    """The composition of the ticked experts.

    Attributes:
        plan: its plan.
        members: version, tokens and weight of each member.
        command: the command that makes it.
        made: it was composed before.
        error: why there is no plan.
    """

    plan: composition.AnyPlan | None = None
    members: Sequence[Mapping[str, Any]] = ()
    command: str = ""
    made: bool = False
    error: RegError | None = None


def composer(site: Site, request: Request) -> Response:
    """Return the composer; the script asks for its parts `experts` and `result`."""
    asked, registry = request.query_params, site.registry
    refs = list(dict.fromkeys(asked.getlist("e")))[:MOST]
    search = asked.get("q", "").strip()[:200]
    choices = Choices.of_query(asked)
    part = asked.get(PART)
    ticked = [] if part == "result" else _resolved(site, refs)
    offered: list[VersionRecord] = []
    total = 0
    if part != "result":
        kind: Kind | None = None if choices.with_base else "expert"
        total = registry.count_versions(kind=kind, search=search)
        found = registry.versions(kind=kind, search=search, limit=OFFERED)
        offered = [one for one in found if one.id not in {other.id for other in ticked}]
    return site.render(
        request,
        "composer.html",
        which=part,
        ticked=ticked,
        offered=offered,
        hidden=total - len(found) if part != "result" else 0,
        total=total,
        search=search,
        choices=choices,
        fields=CHOICES,
        default_text=default_text,
        select_values=select_values,
        switch=FieldKind.SWITCH,
        result=None if part == "experts" or not refs else _result(site, refs, choices),
        preview=url("compose", "preview", e=refs, **choices.query),
        chosen=len(refs),
    )


def preview(site: Site, request: Request) -> Response:
    """Return where the routers of a composition will send tokens: a part of the composer, or a page."""
    refs = list(dict.fromkeys(request.query_params.getlist("e")))[:MOST]
    choices = Choices.of_query(request.query_params)
    recipe = choices.recipe()
    plan = site.registry.plan(refs, recipe, base=choices.base)
    back = url("compose", e=refs, **choices.query)
    if not isinstance(recipe, Recipe):
        raise InvalidInputError("only mixtures have routers to predict from statistics", "choose another output")
    members = tuple(member.version.ref for member in plan.members)
    key = "preview", plan.digest, members
    found = site.cache.get(key, lambda: site.registry.preview(members, recipe, base=choices.base))
    return site.render(request, "preview.html", preview=found, back=back)


def _resolved(site: Site, refs: Sequence[str]) -> list[VersionRecord]:
    found = {}
    for ref in refs:
        try:
            version = site.registry.resolve(ref)
        except RegError:
            continue  # the result says so
        found[version.id] = version
    return list(found.values())


def _result(site: Site, refs: Sequence[str], choices: Choices) -> Result:
    """Return the plan and the command, or the error that prevents them."""
    try:
        recipe = choices.recipe()
        plan = site.registry.plan(refs, recipe, base=choices.base)
    except RegError as error:
        return Result(error=error)
    weights = plan.recipe.document(plan.names).get("weights") or {}
    members = [
        {"version": member.version, "tokens": member.tokens, "weight": weights.get(member.name, 1.0)}
        for member in plan.members
    ]
    versions = ",".join(member.version.ref for member in plan.members)
    out = OUT if choices.to == MOE else f"{choices.to}/"
    command = site.command_line("compose", "--experts", versions, *choices.words(), "--out", out)
    return Result(plan, members, command, site.registry.catalog.has_composition(plan.digest))
