"""The composer: a page that plans a composition as experts are ticked, shows its command, and may start it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from registry.composition import Plan, Preview
from registry.composition.option import OptionKind
from registry.errors import RegError
from registry.ui.composer.choices import BASICS, GROUPS, OPTIONS, default_text, select_values
from registry.ui.composer.composing import Composing, beside_latest, check_new_folder, suggested_folder
from registry.ui.composer.remedies import for_error, for_preview
from registry.ui.site import PART, Site, url
from store.catalog import VersionRecord
from store.catalog.records import Kind

OFFERED = 40  # experts that are offered beside those ticked; a search finds others


def composer(site: Site, request: Request) -> Response:
    """Return the composer; the script asks for its parts `experts` and `result`."""
    asked, registry = request.query_params, site.registry
    composing = Composing.of(asked)
    search = asked.get("q", "").strip()[:200]
    part = asked.get(PART)
    ticked: dict[int, VersionRecord] = {}
    found: list[VersionRecord] = []
    total = 0
    if part != "result":
        ticked = {version.id: version for version in composing.resolved(site).values()}
        kind: Kind | None = None if composing.choices.with_base else "expert"
        total = registry.count_versions(kind=kind, search=search)
        found = registry.versions(kind=kind, search=search, limit=OFFERED)
    offered = [one for one in found if one.id not in ticked]
    result = None
    if part != "experts" and composing.refs:
        result = _result(site, composing, may_write=site.may_write(request))
    return site.render(
        request,
        "composer.html",
        names=[one.name for one in (*ticked.values(), *offered)],
        which=part,
        ticked=list(ticked.values()),
        offered=offered,
        hidden=total - len(found),
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
        result=result,
    )


def preview(site: Site, request: Request) -> Response:
    """Return where the routers of a composition will send tokens: a part of the composer, or a page."""
    composing = Composing.of(request.query_params)
    plan = composing.plan(site)
    composing = replace(composing, refs=tuple(member.version.ref for member in plan.members))
    found, _ = _predicted(site, composing)
    remedies = for_preview(composing, lambda changed: _predicted(site, changed))
    return site.render(
        request,
        "preview.html",
        names=plan.names,
        preview=found,
        back=composing.address,
        remedies=remedies,
        versions={member.version.ref: member.version for member in plan.members},
    )


def _predicted(site: Site, composing: Composing) -> tuple[Preview, float]:
    """Return the prediction, and the seconds that it took."""
    plan = composing.plan(site)
    recipe = plan.recipe
    refs = tuple(member.version.ref for member in plan.members)

    def predict() -> tuple[Preview, float]:
        begin = time.monotonic()
        return site.registry.preview(refs, recipe, base=composing.choices.base), time.monotonic() - begin

    return site.cache.get(("preview", plan.digest, refs), predict)


def _result(site: Site, composing: Composing, may_write: bool) -> dict[str, Any]:
    """Return what the page says of a plan, with its command, or the error that prevents them and what would mend it."""
    try:
        plan = composing.plan(site)
    except RegError as error:
        return {"error": error, "remedies": for_error(site, composing), "out": ""}
    weights = plan.recipe.document(plan.names).get("weights") or {}
    out, no_folder = composing.out or suggested(site, composing, plan), None
    if may_write:
        try:
            check_new_folder(out)
        except RegError as error:
            no_folder = error
    has_preview = plan.output.is_previewed and len(plan.members) > 1
    return {
        "error": None,
        "plan": plan,
        "members": [(member.version, weights.get(member.name, 1.0)) for member in plan.members],
        "out": out,
        "command": site.command_line(*composing.words(plan, out)),
        "cost": plan.output.routing_cost(plan),
        "made": site.registry.catalog.has_composition(plan.digest),
        "preview": url("compose", "preview", e=composing.refs, **composing.query) if has_preview else "",
        "no_folder": no_folder,
    }


def suggested(site: Site, composing: Composing, plan: Plan) -> str:
    """Return the folder that is written where none was typed."""
    taken = [job.out for job in site.all_jobs() if job.goes_on and job.out]
    return suggested_folder(plan.names, composing.choices.to, taken, beside_latest(site.registry.compositions()))
