"""The page of a composition with its scores, and that of its report."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from registry.composition.recipe.fields import target_of
from registry.destination.address import may_exist
from registry.errors import InvalidInputError, RegError
from registry.evaluation.stored import Score, scores_of, shown_score, widest_first
from registry.names.resolve import ALL_STATES, resolve
from registry.report.data import Warned
from registry.report.page import Frame
from registry.report.page import page as report_page
from registry.report.score_words import chance_of_average, unbroken
from registry.report.verdict import opted_out, worse_than_average
from registry.ui.comparison import address, compared, size_of
from registry.ui.composer.choices import Choices
from registry.ui.describing import EARLIER, difference, expert_names, output
from registry.ui.evaluating import MORE_WINDOWS, MOST_DOMAINS, TOKENS, WINDOWS, domains_of, folders_of, form_rows
from registry.ui.site import Site, theme_of, url
from registry.ui.wording import percent, sentence
from store.catalog import CompositionRecord

EVENTS = 25  # events on the page of a composition
COLLAPSED = 0.25  # part of the load that its text would give an expert, below which a page says that it is hardly used

REPORT_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
"""Content security policy of a report: only its own scripts, named by hash, run, in a sandbox without an origin."""

_HASH = re.compile(r"'sha256-[A-Za-z0-9+/]+=*'")


def composition(site: Site, request: Request) -> Response:
    """Return one composition: verdict, members, recipe, folders, scores, audits."""
    record = site.composition(request.path_params["digest"])
    if request.path_params["digest"] != record.digest:
        return RedirectResponse(url("compositions", record.digest))
    return composition_page(site, request, record)


def composition_page(
    site: Site, request: Request, record: CompositionRecord, wrong: tuple[QueryParams, InvalidInputError] | None = None
) -> Response:
    """Return the page of a composition; a `wrong` form is shown again, with its error above it."""
    form, error = wrong or (None, None)
    registry, catalog = site.registry, site.registry.catalog
    versions = [resolve(catalog, ref, states=ALL_STATES) for ref in record.members]
    experts, base = expert_names(record)
    parent, made = record.document.get("parent"), target_of(record.document["recipe"])
    choices = Choices.of_document(record.document)
    related = catalog.compositions(versions[:1])
    everything = registry.compositions()
    earlier = [one for one in everything[-EARLIER:] if one.created_at < record.created_at]
    differs = difference(record, earlier)
    names = [one["name"] for one in record.document["members"]]
    evaluations = registry.evaluations(record)
    scores = widest_first(scores_of(evaluations, record), record)
    gone = [version.ref for version in versions if version.state != "active"]
    shown = scores[0] if scores else None
    better = worse_than_average(shown.average, shown.plain, made, names) if shown else None
    others = compared(request.query_params if form is None else form)
    evaluation = None
    if site.may_write(request) and not gone:
        windows = [("windows", text) for text in request.query_params.getlist("windows")[:1]]
        evaluation = _evaluation(site, record, scores, others, QueryParams(windows) if form is None else form)
    if error is not None:
        if evaluation is None:
            raise error
        evaluation["error"] = sentence(error.message), error.hint
    return site.render(
        request,
        "composition.html",
        200 if error is None else 400,
        names={*(ref.partition("@")[0] for ref in experts), *names},
        grey=[ref.partition("@")[0] for ref in gone],
        composition=record,
        versions=versions,
        experts=experts,
        copies=record.document.get("from_base"),
        base=base,
        size=size_of(site, record, evaluations),
        difference=differs,
        compare=address([record, *([differs.other] if differs else [])]) if len(everything) > 1 else None,
        recipe={key: value for key, value in record.document["recipe"].items() if key != "to"},
        gone=gone,
        warning=_opted_out(site, record, gone) if gone else None,
        parent=parent,
        parent_known=parent is not None and catalog.has_composition(parent),
        children=[child for child in related if child.document.get("parent") == record.digest],
        folders=[(folder, may_exist(folder)) for folder in record.folders],
        pushes=catalog.pushes({record.digest}),
        scores=scores,
        shown=shown,
        chance=_chance(shown) if shown else "",
        unused=_unused(shown) if shown else [],
        average_is_better=None if better is None or gone else _typed(site, better),
        audits=registry.audits(record),
        data=[word for domain in shown.rows for word in ("--data", f"{domain}=FILE")] if shown else [],
        more_windows=MORE_WINDOWS,
        evaluation=evaluation,
        compared=others,
        again=None if choices is None else url("compose", e=experts, **choices.query),
        events=registry.log(record.digest, limit=EVENTS),
    )


def _chance(shown: Score) -> str:
    """Return whether a composition and the averaged weights of its experts differ by more than chance: a sentence."""
    plain = {} if shown.plain is None else shown.document["plain_average"]
    ahead = shown.document["figures"].get("ahead_of_average") if plain else None
    return chance_of_average(ahead, shown.interval, plain.get("average_interval"), "this one")


def _unused(shown: Score) -> list[tuple[str, str, str]]:
    """Return experts that hardly any token reaches, with their share of all tokens and what it is held against.

    That is their own domain's share of the text; where no domain is an expert's, an equal share.
    """
    load, words = shown.load, "its own domain has {} of the text"
    expected = {domain: row.tokens / shown.tokens for domain, row in shown.rows.items() if domain in load}
    if not expected:
        expected, words = dict.fromkeys(load, 1 / max(1, len(load))), "an equal share is {}"
    return [
        (expert, percent(load[expert]), words.format(percent(part)))
        for expert, part in expected.items()
        if load[expert] < COLLAPSED * part
    ]


def _evaluation(
    site: Site, record: CompositionRecord, scores: Sequence[Score], others: Sequence[str], form: QueryParams
) -> dict[str, Any] | None:
    """Return what the form that evaluates a composition shows; None if no folder of it is there.

    It offers the domains of the compositions `others` too. `form` is what was typed; before that, at most `windows`.
    """
    folders = folders_of(record)
    if not folders:
        return None
    domains = dict.fromkeys(domains_of(record, scores[0] if scores else None))
    for digest in others:
        with suppress(RegError):
            other = site.composition(digest)
            domains |= dict.fromkeys(domains_of(other, shown_score(site.registry.evaluations(other), other)))
    jobs = [job.words for job in site.all_jobs()]
    return {
        "folders": folders,
        "folder": form.get("folder", folders[0]),
        "rows": form_rows([*domains][:MOST_DOMAINS], form, jobs, site.index.get("labels", lambda: _labels(site))),
        "windows": form.get("windows", MORE_WINDOWS if scores and scores[0].is_small else WINDOWS),
        "usual": (WINDOWS, TOKENS),
        "place": Path.cwd(),
        "oracle": target_of(record.document["recipe"]).has_oracle,
        "ticked": [name for name in ("baselines", "oracle") if "folder" not in form or form.get(name) == "1"],
        "error": None,
    }


def _labels(site: Site) -> dict[str, str]:
    """Return domain → the name of the file that its latest evaluation scored."""
    found: dict[str, str] = {}
    for evaluation in site.registry.catalog.evaluations():
        for domain, text in evaluation.document["data"].items():
            found.setdefault(domain, text["label"])
    return found


def _opted_out(site: Site, record: CompositionRecord, gone: Sequence[str]) -> Warned:
    """Return the report's warning of opted-out members, with the command as it is typed here."""
    experts, base = expert_names(record)
    left = [ref.partition("@")[0] for ref in experts if ref not in gone] if set(gone).isdisjoint(base) else []
    return _typed(site, opted_out(gone, left, {**record.document["recipe"], "to": output(record.document)}))


def _typed(site: Site, found: Warned) -> Warned:
    """Return a report's warning with its command as it is typed here."""
    typed = found.command and site.command_line() + found.command.removeprefix("reg")
    return replace(found, text=unbroken(found.text), mend=unbroken(found.mend), command=typed)


def report(site: Site, request: Request) -> Response:
    """Return a composition's report, a self-contained page under the same head as the others, in the chosen theme."""
    record = site.composition(request.path_params["digest"])
    if request.path_params["digest"] != record.digest:
        return RedirectResponse(url("compositions", record.digest, "report"))
    theme = theme_of(request)
    may_write = site.may_write(request)
    links = site.links(request)
    form = url("compositions", record.digest) + "#evaluate" if may_write and folders_of(record) else None

    def make() -> str:
        figures = site.registry.report(record.digest)
        back = (figures.name, url("compositions", record.digest))
        return report_page(figures, Frame(links, "/compositions", back, theme, site.command_line(), form))

    text = site.reports.get((record.digest, theme, links, form), make)
    scripts = " ".join(_HASH.findall(unescape(text[: text.index("<title>")]))) or "'none'"
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY.format(scripts=scripts)})
