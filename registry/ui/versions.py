"""The pages of experts and base models: all versions, and one."""

from collections.abc import Mapping
from typing import cast

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from registry.names.resolve import ALL_STATES, resolve, versions_of
from registry.ui.comparing import MOST, compare
from registry.ui.paging import Paging
from registry.ui.site import Site, url, whole
from store.catalog import CompositionRecord, VersionRecord
from store.catalog.records import Kind, Role

PAGE = 50
"""Versions on a page."""

TAGS = 24
"""Tags that are offered to choose from."""

SEARCH_CHARACTERS = 200
"""Of a search, what is looked at."""

EVENTS = 20
"""Events that the page of a version shows."""

ROLES: Mapping[Role, str] = {
    "trunk": "trunk",
    "mlp": "MLPs",
    "statistics": "statistics",
    "calibration": "kept calibration tokens",
    "file": "configuration and tokenizer",
}
"""What an array is to a version → how it is called."""


def versions(site: Site, request: Request) -> Response:
    """Return all versions, narrowed by words, kind and tags, in pages."""
    asked = request.query_params
    search = asked.get("q", "").strip()[:SEARCH_CHARACTERS]
    kind = cast(Kind, asked["kind"]) if asked.get("kind") in ("expert", "base") else None
    everything = asked.get("all") == "1"
    chosen = [tag for tag in dict.fromkeys(asked.getlist("tag")) if "=" in tag]
    tags = {key: value for key, _, value in (tag.partition("=") for tag in chosen)}

    def at(page: int = 1, **other: object) -> str:
        now: dict[str, object] = {"q": search, "kind": kind, "tag": chosen, "all": everything}
        return url(**(now | {"page": None if page == 1 else page} | other))

    registry = site.registry
    total = registry.count_versions(kind=kind, everything=everything, tags=tags, search=search)
    paging = Paging.of(whole(request, "page", 1), total, PAGE, at)
    found = registry.versions(
        kind=kind, everything=everything, tags=tags, search=search, limit=PAGE, offset=paging.offset
    )
    offered = [f"{tag.key}={tag.value}" for tag in registry.tag_counts(TAGS)]
    offered += [tag for tag in chosen if tag not in offered]
    return site.render(
        request,
        "versions.html",
        versions=found,
        paging=paging,
        search=search,
        kind=kind,
        everything=everything,
        chosen=chosen,
        tags=[
            (tag, tag in chosen, at(tag=[one for one in chosen if one != tag] if tag in chosen else [*chosen, tag]))
            for tag in offered
        ],
        narrowed=bool(search or kind or chosen),
        registered=bool(total) or registry.count_versions(everything=True) > 0,
    )


def version(site: Site, request: Request) -> Response:
    """Return one version: what it is, what it was taken on, what was made of it, what happened to it."""
    registry = site.registry
    found = _asked(site, request)
    if request.path_params["ref"] != found.ref:
        return RedirectResponse(url("versions", found.ref))
    sizes: dict[str, tuple[int, int]] = {}
    for link in registry.arrays_of(found):
        count, nbytes = sizes.get(link.role, (0, 0))
        sizes[link.role] = count + 1, nbytes + link.nbytes
    others = [one for one in versions_of(registry.catalog, found.name) if one.id != found.id]
    return site.render(
        request,
        "version.html",
        version=found,
        architecture=(found.content or {}).get("architecture", {}),
        arrays=[(ROLES[role], *sizes[role]) for role in ROLES if role in sizes],
        nbytes=sum(nbytes for _, nbytes in sizes.values()),
        others=others,
        compositions=list(reversed(registry.catalog.compositions([found]))),
        pushes=registry.catalog.pushes({found.ref}),
        events=registry.log(found.ref, limit=EVENTS),
        few=registry.count_versions() <= MOST,
    )


def comparison(site: Site, request: Request) -> Response:
    """Return where a version comes from and goes to, and how far it is from others: a part of its page, or a page."""
    found = _asked(site, request)
    if found.state != "active":
        return site.render(request, "comparison.html", version=found, comparison=None, lineage=None)
    compared = site.cache.get(("comparison", found.id), lambda: compare(site.registry, found))
    made = site.registry.catalog.compositions([found])
    return site.render(
        request,
        "comparison.html",
        version=found,
        comparison=compared,
        lineage={
            "bases": [one for one in compared.relations if one.kind == "base" and one.verdict != "unrelated"],
            "made": [one for one in made if "parent" not in one.document],
            "trained": [one for one in made if "parent" in one.document],
        },
    )


def expert_names(composition: CompositionRecord) -> tuple[list[str], list[str]]:
    """Return the versions that are a composition's experts, and those that are its base model."""
    base = (composition.document.get("base") or {"name": None})["name"]
    experts = [ref for ref in composition.members if ref.partition("@")[0] != base]
    return experts, [ref for ref in composition.members if ref not in experts]


def _asked(site: Site, request: Request) -> VersionRecord:
    return resolve(site.registry.catalog, request.path_params["ref"], states=ALL_STATES)
