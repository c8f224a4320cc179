"""The composer: a page that plans a composition as experts are ticked, shows its command, and may start it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from registry.checkpoint.joint_training import parts_in
from registry.composition import Plan, Preview, RoutingCost
from registry.composition.option import OptionKind
from registry.errors import RegError
from registry.ui.composer.choices import BASICS, GROUPS, OPTIONS, default_text, select_values
from registry.ui.composer.composing import Composing, beside_latest, check_new_folder, suggested_folder
from registry.ui.composer.remedies import Remedy, for_error, for_preview
from registry.ui.describing import sentences
from registry.ui.site import PART, Site, url
from store.catalog import VersionRecord
from store.catalog.records import Kind

OFFERED = 40
"""Experts that are offered beside those ticked; a search finds others."""


@dataclass(frozen=True)
class Result:
    """The composition of the ticked experts.

    Attributes:
        members: version, tokens and weight of each member.
        out: the folder that would be written.
        made_of: how it is made, each step as a few words.
        made: it was composed before.
        cost: what context routing adds, if it routes so.
        preview: the address of the predicted routing, where there is one.
        error, remedies: why there is no plan, and changes with which there is one.
        no_folder: why the typed folder cannot be written; only for the browser that may start work.
    """

    plan: Plan | None = None
    members: Sequence[Mapping[str, Any]] = ()
    out: str = ""
    command: str = ""
    made_of: Sequence[str] = ()
    made: bool = False
    cost: RoutingCost | None = None
    preview: str = ""
    error: RegError | None = None
    remedies: Sequence[Remedy] = ()
    no_folder: RegError | None = None


def composer(site: Site, request: Request) -> Response:
    """Return the composer; the script asks for its parts `experts` and `result`."""
    asked, registry = request.query_params, site.registry
    composing = Composing.of(asked)
    search = asked.get("q", "").strip()[:200]
    part = asked.get(PART)
    ticked = [] if part == "result" else _resolved(site, composing.refs)
    offered: list[VersionRecord] = []
    total = 0
    if part != "result":
        kind: Kind | None = None if composing.choices.with_base else "expert"
        total = registry.count_versions(kind=kind, search=search)
        found = registry.versions(kind=kind, search=search, limit=OFFERED)
        offered = [one for one in found if one.id not in {other.id for other in ticked}]
    return site.render(
        request,
        "composer.html",
        names=[one.name for one in (*ticked, *offered)],
        which=part,
        ticked=ticked,
        offered=offered,
        hidden=total - len(found) if part != "result" else 0,
        total=total,
        search=search,
        composing=composing,
        choices=composing.choices,
        basics=BASICS,
        groups=GROUPS,
        default_text=default_text,
        select_values=select_values,
        switch=OptionKind.SWITCH,
        words=OPTIONS,
        folder=Path.cwd(),
        result=None
        if part == "experts" or not composing.refs
        else _result(site, composing, may_write=site.may_write(request)),
    )


def preview(site: Site, request: Request) -> Response:
    """Return where the routers of a composition will send tokens: a part of the composer, or a page."""
    composing = Composing.of(request.query_params)
    plan = composing.plan(site)
    composing = replace(composing, refs=tuple(member.version.ref for member in plan.members))
    found, _ = _predicted(site, composing)
    remedies = for_preview(composing, lambda changed: _predicted(site, changed))
    tokens = {member.version.ref: brings_tokens(member.version) for member in plan.members}
    return site.render(
        request,
        "preview.html",
        names=plan.names,
        preview=found,
        back=composing.address,
        remedies=remedies,
        brings_tokens=tokens,
    )


def brings_tokens(version: VersionRecord) -> bool:
    """Return whether a version has calibration tokens of its own; experts of a joint training have not."""
    return bool(version.statistics) and not any(parts_in(version.content))


def _predicted(site: Site, composing: Composing) -> tuple[Preview, float]:
    """Return the prediction, and the seconds that it took."""
    plan = composing.plan(site)
    recipe = plan.recipe
    refs = tuple(member.version.ref for member in plan.members)

    def predict() -> tuple[Preview, float]:
        begin = time.monotonic()
        return site.registry.preview(refs, recipe, base=composing.choices.base), time.monotonic() - begin

    return site.cache.get(("preview", plan.digest, refs), predict)


def _resolved(site: Site, refs: Sequence[str]) -> list[VersionRecord]:
    found = {}
    for ref in refs:
        try:
            version = site.registry.resolve(ref)
        except RegError:
            continue  # the result says so
        found[version.id] = version
    return list(found.values())


def _result(site: Site, composing: Composing, may_write: bool) -> Result:
    """Return the plan and the command, or the error that prevents them."""
    try:
        plan = composing.plan(site)
    except RegError as error:
        return Result(error=error, remedies=for_error(site, composing))
    weights = plan.recipe.document(plan.names).get("weights") or {}
    members = [
        {"version": member.version, "tokens": member.tokens, "weight": weights.get(member.name, 1.0)}
        for member in plan.members
    ]
    out, no_folder = composing.out or suggested(site, composing, plan), None
    if may_write:
        try:
            check_new_folder(out)
        except RegError as error:
            no_folder = error
    command = site.command_line(*composing.words(plan, out))
    has_preview = plan.output.is_previewed and len(plan.members) > 1
    address = url("compose", "preview", e=composing.refs, **composing.query) if has_preview else ""
    cost = plan.output.routing_cost(plan)
    return Result(
        plan,
        members,
        out,
        command,
        cost=cost,
        made_of=sentences(plan.document),
        made=site.registry.catalog.has_composition(plan.digest),
        preview=address,
        no_folder=no_folder,
    )


def suggested(site: Site, composing: Composing, plan: Plan) -> str:
    """Return the folder that is written where none was typed."""
    taken = [job.out for job in site.jobs.all() if job.goes_on and job.out] if site.jobs is not None else []
    return suggested_folder(plan.names, composing.choices.to, taken, beside_latest(site.registry.compositions()))
