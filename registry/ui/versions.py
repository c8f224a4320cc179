"""The pages of experts and base models: the list, one version, and its comparison with others."""

from collections.abc import Mapping
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from registry.names.resolve import ALL_STATES, resolve, versions_of
from registry.opt_out.shared_training import trained_together
from registry.ui.comparing import MOST, compare
from registry.ui.paging import Paging
from registry.ui.site import Site, url, whole
from store.catalog import CompositionRecord, VersionRecord
from store.catalog.records import Kind, Role

PAGE = 50
"""Versions per page."""

TAGS = 24
"""Number of tags that the list offers as filters."""

SEARCH_CHARACTERS = 200
"""Maximum length of a search; the rest is ignored."""

EVENTS = 20
"""Number of events on the page of a version."""

ROLES: Mapping[Role, str] = {
    "trunk": "trunk",
    "mlp": "MLPs",
    "statistics": "statistics",
    "calibration": "kept calibration tokens",
    "file": "configuration and tokenizer",
    "simoe": "shared weights, mask and router row of a SIMoE",
}
"""Role of an array → its label."""


def versions(site: Site, request: Request) -> Response:
    """Return all versions, filtered by words, kind and tags, in pages."""
    query = request.query_params
    search = query.get("q", "").strip()[:SEARCH_CHARACTERS]
    kind = cast(Kind, query["kind"]) if query.get("kind") in ("expert", "base") else None
    everything = query.get("all") == "1"
    chosen = [tag for tag in dict.fromkeys(query.getlist("tag")) if "=" in tag]
    tags = {key: value for key, _, value in (tag.partition("=") for tag in chosen)}

    def at(page: int = 1, **other: object) -> str:
        now: dict[str, object] = {"q": search, "kind": kind, "tag": chosen, "all": everything}
        return url(**(now | {"page": None if page == 1 else page} | other))

    registry = site.registry
    total = registry.count_versions(kind=kind, everything=everything, tags=tags, search=search)
    paging = Paging.of(whole(request, "page", 1), total, PAGE, at)
    page_versions = registry.versions(
        kind=kind, everything=everything, tags=tags, search=search, limit=PAGE, offset=paging.offset
    )
    offered_tags = [f"{tag.key}={tag.value}" for tag in registry.tag_counts(TAGS)]
    offered_tags += [tag for tag in chosen if tag not in offered_tags]
    return site.render(
        request,
        "versions.html",
        versions=page_versions,
        paging=paging,
        search=search,
        kind=kind,
        everything=everything,
        chosen=chosen,
        tags=[
            (
                tag,
                tag in chosen,
                at(tag=[other for other in chosen if other != tag] if tag in chosen else [*chosen, tag]),
            )
            for tag in offered_tags
        ],
        narrowed=bool(search or kind or chosen),
        registered=bool(total) or registry.count_versions(everything=True) > 0,
    )


def version(site: Site, request: Request) -> Response:
    """Return one version: its content, statistics, compositions and events."""
    registry = site.registry
    record = _requested(site, request)
    if request.path_params["ref"] != record.ref:
        return RedirectResponse(url("versions", record.ref))
    sizes: dict[str, tuple[int, int]] = {}
    for link in registry.arrays_of(record):
        count, nbytes = sizes.get(link.role, (0, 0))
        sizes[link.role] = count + 1, nbytes + link.nbytes
    others = [other for other in versions_of(registry.catalog, record.name) if other.id != record.id]
    return site.render(
        request,
        "version.html",
        version=record,
        architecture=(record.content or {}).get("architecture", {}),
        part_of=_part_of(record.content or {}),
        together=trained_together([record], registry.versions),
        arrays=[(ROLES[role], *sizes[role]) for role in ROLES if role in sizes],
        nbytes=sum(nbytes for _, nbytes in sizes.values()),
        others=others,
        compositions=list(reversed(registry.catalog.compositions([record]))),
        pushes=registry.catalog.pushes({record.ref}),
        events=registry.log(record.ref, limit=EVENTS),
        few=registry.count_versions() <= MOST,
    )


def comparison(site: Site, request: Request) -> Response:
    """Return the lineage of a version and its comparison with others, as a page or a part of the version's page."""
    record = _requested(site, request)
    if record.state != "active":
        return site.render(request, "comparison.html", version=record, comparison=None, lineage=None)
    compared = site.cache.get(("comparison", record.id), lambda: compare(site.registry, record))
    compositions = site.registry.catalog.compositions([record])
    return site.render(
        request,
        "comparison.html",
        version=record,
        comparison=compared,
        lineage={
            "bases": [base for base in compared.relations if base.kind == "base" and base.verdict != "unrelated"],
            "made": [made for made in compositions if "parent" not in made.document],
            "trained": [made for made in compositions if "parent" in made.document],
        },
    )


def _part_of(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a version is in the soup or the SIMoE that it was trained in, as labels and texts."""
    if "simoe" in content:
        simoe = content["simoe"]
        router = f"its router reads the first {simoe['prompt_tokens']:,} tokens"
        return [("SIMoE", f"expert {simoe['number']} of {simoe['experts']}; {router}")]
    if "soup" not in content:
        return []
    soup = content["soup"]
    if "soup" in soup:
        return [("Soup", f"expert {soup['number']} of the soup {soup['soup'][:12]}")]
    return [("Soup", f"shared weights; experts: {soup['experts']}"), ("Domains", ", ".join(soup["domains"]))]


def expert_names(composition: CompositionRecord) -> tuple[list[str], list[str]]:
    """Return the references of a composition's experts (none of copies), and that of another base model, if any."""
    names = set() if "from_base" in composition.document else {one["name"] for one in composition.document["members"]}
    experts = [ref for ref in composition.members if ref.partition("@")[0] in names]
    return experts, [ref for ref in composition.members if ref not in experts]


def _requested(site: Site, request: Request) -> VersionRecord:
    return resolve(site.registry.catalog, request.path_params["ref"], states=ALL_STATES)
