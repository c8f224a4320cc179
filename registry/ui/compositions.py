"""The pages of compositions: the list, one composition with its scores, and its report."""

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
from registry.report.frame import Frame
from registry.report.page import page as report_page
from registry.ui.choices import Choices
from registry.ui.paging import Paging
from registry.ui.site import Site, url, whole
from registry.ui.versions import expert_names
from store.catalog import CompositionRecord, EvaluationRecord

PAGE = 25
"""Compositions per page."""

REPORT_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
"""Content security policy of a report: only its own scripts, named by hash, run, in a sandbox without an origin."""

REPORT_LINKS = (("Home", "/"), ("Compositions", "/compositions"), ("Compose", "/compose"), ("Log", "/log"))
"""The pages that a report links to: those of `page.html`."""

THEME = "reg-theme"
"""The cookie of the chosen theme: a sandboxed page cannot read the browser's storage."""

_HASH = re.compile(r"'sha256-[A-Za-z0-9+/]+=*'")


@dataclass(frozen=True)
class Line:
    """A composition in the list.

    Attributes:
        record: the composition.
        experts: its experts, where they are versions of their own.
        copies: the number of its experts, where they are copies of its base model.
        base: its base model's version, if it has one.
        method: the kind of model and the method.
        router: the settings of its routers, and the experts per token.
        score: the average score of the latest evaluation.
    """

    record: CompositionRecord
    experts: Sequence[str]
    copies: int | None
    base: Sequence[str]
    method: str
    router: str
    score: float | None


@dataclass(frozen=True)
class Scores:
    """One evaluation on a page.

    Attributes:
        at: the time of the evaluation.
        settings: the settings of the evaluation.
        rows: one per domain: domain, perplexity, score, oracle's score, routing accuracy, tokens, label.
        average: average score and oracle's average score.
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
        """Return the figures of an evaluation for a page."""
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
    """Return all compositions, or those of a version or name, latest first, in pages."""
    subject = request.query_params.get("of", "").strip()
    records = site.registry.compositions(subject or None)[::-1]
    paging = Paging.of(
        whole(request, "page", 1),
        len(records),
        PAGE,
        lambda page: url("compositions", of=subject, page=page if page > 1 else None),
    )
    lines = [_line(site, record) for record in records[paging.offset : paging.offset + PAGE]]
    return site.render(request, "compositions.html", lines=lines, paging=paging, of=subject)


def composition(site: Site, request: Request) -> Response:
    """Return one composition: members, recipe, folders, scores, audits."""
    record = _requested(site, request)
    if request.path_params["digest"] != record.digest:
        return RedirectResponse(url("compositions", record.digest))
    registry, catalog = site.registry, site.registry.catalog
    members = [resolve(catalog, ref, states=ALL_STATES) for ref in record.members]
    experts, base = expert_names(record)
    parent = record.document.get("parent")
    choices = Choices.of_document(record.document)
    related = catalog.compositions(members[:1])
    return site.render(
        request,
        "composition.html",
        composition=record,
        members=members,
        experts=experts,
        count=len(record.document["members"]),
        base=base,
        recipe={key: value for key, value in record.document["recipe"].items() if key != "to"},
        to=record.document["recipe"].get("to", "moe"),
        gone=[member for member in members if member.state != "active"],
        parent=parent,
        parent_known=parent is not None and catalog.has_composition(parent),
        children=[child for child in related if child.document.get("parent") == record.digest],
        folders=[(folder, Path(folder).is_dir()) for folder in record.folders],
        pushes=catalog.pushes({record.digest}),
        scores=[Scores.of(evaluation) for evaluation in registry.evaluations(record)],
        audits=registry.audits(record),
        again=None if choices is None else url("compose", e=experts, **choices.query),
        events=registry.log(record.digest, limit=PAGE),
    )


def report(site: Site, request: Request) -> Response:
    """Return a composition's report, a self-contained page under the same head as the others, in the chosen theme."""
    record = _requested(site, request)
    if request.path_params["digest"] != record.digest:
        return RedirectResponse(url("compositions", record.digest, "report"))
    chosen = request.cookies.get(THEME)
    theme = chosen if chosen in ("light", "dark") else None

    def make() -> str:
        figures = site.registry.report(record.digest)
        back = (figures.name, url("compositions", record.digest))
        return report_page(figures, Frame(REPORT_LINKS, back, theme, site.command_line()))

    text = site.reports.get((record.digest, theme), make)
    scripts = " ".join(_HASH.findall(unescape(text[: text.index("<title>")]))) or "'none'"
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY.format(scripts=scripts)})


def _requested(site: Site, request: Request) -> CompositionRecord:
    digest = request.path_params["digest"]
    record = site.registry.composition(digest)
    if record is None:
        raise NotFoundError(f"there is no composition {digest!r}", "run: reg compositions")
    return record


def _line(site: Site, record: CompositionRecord) -> Line:
    recipe = record.document["recipe"]
    to = recipe.get("to", "moe")
    method = recipe.get("trunk") or recipe.get("routing") or ""
    labels = {
        recipe.get("router", ""): True,
        f"top-{recipe.get('top_k')}": "top_k" in recipe,
        "lam auto": recipe.get("lam") == "auto",
        "advantage": recipe.get("token_weight") == "advantage",
        f"refine {recipe.get('refine')}": bool(recipe.get("refine")),
        "refit": recipe.get("refine_mlp", False),
        "trunk refit": recipe.get("refine_trunk", False),
        "trained": "training" in record.document,
    }
    experts, base = expert_names(record)
    latest = next((each.document["figures"]["average"] for each in site.registry.evaluations(record)), None)
    router = ", ".join(text for text, holds in labels.items() if text and holds)
    copies = record.document.get("from_base")
    made = method if to == "moe" else ", ".join(filter(None, (to, method)))
    return Line(record, experts, copies, base, made, router, latest)
