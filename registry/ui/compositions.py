"""The pages of what was composed: all compositions, one with its scores, and its report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from registry.errors import NotFoundError
from registry.names.resolve import ALL_STATES, resolve
from registry.report.page import page as report_page
from registry.ui.choices import Choices
from registry.ui.paging import Paging
from registry.ui.site import Site, url, whole
from registry.ui.versions import expert_names
from store.catalog import CompositionRecord, EvaluationRecord

PAGE = 25
"""Compositions on a page."""

REPORT_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
"""What a report may do: run the scripts that it names itself by their hashes, as nobody's page."""

_HASH = re.compile(r"'sha256-[A-Za-z0-9+/]+=*'")


@dataclass(frozen=True)
class Line:
    """A composition as the list shows it.

    Attributes:
        made: the composition.
        experts: its experts.
        base: its base model's version, where it has one.
        method: what was made, and by which method.
        router: how its routers were made, and the experts per token.
        score: the average score that the latest evaluation found.
    """

    made: CompositionRecord
    experts: Sequence[str]
    base: Sequence[str]
    method: str
    router: str
    score: float | None


@dataclass(frozen=True)
class Scores:
    """One evaluation as a page shows it.

    Attributes:
        at: when.
        settings: how test text was scored.
        rows: a domain each: domain, perplexity, score, oracle's score, routing accuracy, tokens, label.
        average: score and oracle's score.
        load: expert → share of all tokens.
        layers: expert → its share by layer.
    """

    at: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    average: tuple[float | None, float | None]
    load: Mapping[str, float]
    layers: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, evaluation: EvaluationRecord) -> "Scores":
        """Return what a page shows of an evaluation."""
        document = evaluation.document
        figures, oracle = document["figures"], document["oracle"] or {}
        rows = [
            {
                "domain": domain,
                "perplexity": figures["perplexity"].get(domain),
                "score": figures["score"].get(domain),
                "oracle": oracle.get("score", {}).get(domain),
                "accuracy": figures["overall_accuracy"].get(domain),
                "tokens": text["tokens"],
                "label": text["label"],
            }
            for domain, text in document["data"].items()
        ]
        average = figures["average"], oracle.get("average")
        load = figures["overall_load"]
        return cls(evaluation.evaluated_at, document["settings"], rows, average, load, figures["load"])


def compositions(site: Site, request: Request) -> Response:
    """Return all compositions, the latest first, in pages; narrowed to those of a version or name."""
    of = request.query_params.get("of", "").strip()
    made = site.registry.compositions(of or None)[::-1]
    paging = Paging.of(
        whole(request, "page", 1),
        len(made),
        PAGE,
        lambda page: url("compositions", of=of, page=page if page > 1 else None),
    )
    lines = [_line(site, one) for one in made[paging.offset : paging.offset + PAGE]]
    return site.render(request, "compositions.html", lines=lines, paging=paging, of=of)


def composition(site: Site, request: Request) -> Response:
    """Return one composition: members, recipe, folders, scores."""
    found = _asked(site, request)
    if request.path_params["digest"] != found.digest:
        return RedirectResponse(url("compositions", found.digest))
    registry, catalog = site.registry, site.registry.catalog
    members = [resolve(catalog, ref, states=ALL_STATES) for ref in found.members]
    experts, base = expert_names(found)
    parent = found.document.get("parent")
    choices = Choices.of_document(found.document)
    everyone = catalog.compositions(members[:1])
    return site.render(
        request,
        "composition.html",
        composition=found,
        members=members,
        base=base,
        recipe={key: value for key, value in found.document["recipe"].items() if key != "to"},
        to=found.document["recipe"].get("to", "moe"),
        gone=[one for one in members if one.state != "active"],
        parent=parent,
        parent_known=parent is not None and catalog.has_composition(parent),
        children=[one for one in everyone if one.document.get("parent") == found.digest],
        folders=[(folder, Path(folder).is_dir()) for folder in found.folders],
        pushes=catalog.pushes({found.digest}),
        scores=[Scores.of(one) for one in registry.evaluations(found)],
        again=None if choices is None else url("compose", e=experts, **choices.query),
        events=registry.log(found.digest, limit=PAGE),
    )


def report(site: Site, request: Request) -> Response:
    """Return a composition's report, which is a page of its own: it needs nothing else and knows nothing of these."""
    found = _asked(site, request)
    if request.path_params["digest"] != found.digest:
        return RedirectResponse(url("compositions", found.digest, "report"))

    def make() -> str:
        return report_page(site.registry.report(found.digest))

    text = site.reports.get(found.digest, make)
    scripts = " ".join(_HASH.findall(unescape(text[: text.index("<title>")]))) or "'none'"
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY.format(scripts=scripts)})


def _asked(site: Site, request: Request) -> CompositionRecord:
    digest = request.path_params["digest"]
    found = site.registry.composition(digest)
    if found is None:
        raise NotFoundError(f"there is no composition {digest!r}", "run: reg compositions")
    return found


def _line(site: Site, made: CompositionRecord) -> Line:
    recipe = made.document["recipe"]
    to = recipe.get("to", "moe")
    method = recipe.get("trunk") or recipe.get("routing") or ""
    told = {
        recipe.get("router", ""): True,
        f"top-{recipe.get('top_k')}": "top_k" in recipe,
        "lam auto": recipe.get("lam") == "auto",
        "advantage": recipe.get("token_weight") == "advantage",
        f"refine {recipe.get('refine')}": bool(recipe.get("refine")),
        "refit": recipe.get("refine_mlp", False),
        "trained": "training" in made.document,
    }
    experts, base = expert_names(made)
    latest = next((one.document["figures"]["average"] for one in site.registry.evaluations(made)), None)
    router = ", ".join(text for text, holds in told.items() if text and holds)
    return Line(made, experts, base, method if to == "moe" else f"{to}, {method}", router, latest)
