"""The page that shows two to four compositions side by side: which is better on the same text, and their sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from registry.composition.manifest import CompositionManifest
from registry.destination.address import may_exist
from registry.errors import InvalidInputError, NotFoundError, RegError
from registry.evaluation.same_text import Mean, apart, best, found_in, mean_of, readers, shared_rows, uncovered
from registry.evaluation.stored import Score, scores_of, shown_score
from registry.io.display import short, size
from registry.report.score_words import which_is_better, why_apart
from registry.report.verdict import PLACE
from registry.ui.describing import Described, changes, describe, expert_names, title
from registry.ui.evaluating import MORE_WINDOWS, domains_of, folders_of, known_files
from registry.ui.site import Site, url
from registry.ui.wording import compact
from store.catalog import CompositionRecord, EvaluationRecord

MOST = 4  # compositions side by side
MOST_OFFERED = 200  # compositions, the latest, that can be added
MOST_DOMAINS = 12  # domains that the command names; more would be hard to fill in
_MOST_READ = 32  # digests of an address that are looked up


@dataclass(frozen=True)
class Size:
    """Numbers of parameters, in all, of one token and those that context routing adds, and of bytes; None: unknown."""

    parameters: int | None = None
    active: int | None = None
    nbytes: int | None = None
    routing: int | None = None


def size_of(site: Site, record: CompositionRecord, evaluations: Sequence[EvaluationRecord]) -> Size:
    """Return the size that the latest evaluation counted, else that of its plan, which reads no array."""
    figures = evaluations[0].document["figures"] if evaluations else {}
    planned = site.cache.get(("size", record.digest), lambda: _planned(site, record))
    return replace(
        planned,
        parameters=figures.get("parameters") or planned.parameters,
        active=figures.get("active_parameters") or planned.active,
    )


def _planned(site: Site, record: CompositionRecord) -> Size:
    """Return the size by the plan of a composition; nothing of one that was trained, or cannot be made again."""
    try:
        manifest = CompositionManifest.from_document(record.document, f"composition {short(record.digest)}")
        experts, base = expert_names(record)
        known = next(iter(base), None)
        plan = site.registry.plan(experts, manifest.recipe, base=known, from_base=manifest.from_base)
    except RegError:
        return Size()
    if plan.digest != record.digest:
        return Size()
    cost = plan.output.routing_cost(plan)
    return Size(plan.parameters, plan.active_parameters, plan.nbytes, None if cost is None else cost.parameters)


@dataclass(frozen=True)
class Column:
    """A composition among others, with the score of its widest evaluation."""

    described: Described
    name: str
    changes: Sequence[str]  # differences from the first composition, each as a few words
    gone: Sequence[str]  # its opted-out members
    folder: str  # one that may be there; empty if there is none
    others: str  # the address without it
    size: Size

    @property
    def score(self) -> Score | None:
        """The scores of its widest evaluation."""
        return self.described.score


def side_by_side(site: Site, request: Request) -> Response:
    """Return the compositions of an address as columns."""
    asked = list(dict.fromkeys(request.query_params.getlist("c")))
    records, unknown = _requested(site, asked)
    if len(records) > MOST:
        raise InvalidInputError(f"{len(records)} compositions are chosen", f"choose up to {MOST}")
    names = _names(records)
    evaluations = [site.registry.evaluations(record) for record in records]
    experts = [[one["name"] for one in record.document["members"]] for record in records]
    opted_out = site.opted_out()
    columns = [
        Column(
            describe(record, (), shown_score(own, record)),
            name,
            changes(record, records[0]),
            [ref for ref in record.members if ref in opted_out],
            next((folder for folder in reversed(record.folders) if may_exist(folder)), ""),
            address([one for one in records if one is not record]),
            size_of(site, record, own),
        )
        for record, name, own in zip(records, names, evaluations, strict=True)
    ]
    found = [found_in(scores_of(own, record)) for own, record in zip(evaluations, records, strict=True)]
    rows = shared_rows(found)
    mean = mean_of(rows)
    small = any(cell.is_small for row in rows for cell in row.read)
    may_write = site.may_write(request)
    jobs = site.all_jobs() if may_write else []
    left = uncovered(mean, experts)
    lacking = (
        _lacking(columns, mean, [readers(domain, found, rows) for domain in left], small=small) if may_write else []
    )
    scores = list(zip(names, evaluations, mean.scores, strict=True)) if mean else []
    everything = site.registry.compositions()
    chosen = {record.digest for record in records}
    return site.render(
        request,
        "side_by_side.html",
        names={name for members in experts for name in members}.union(*found),
        columns=columns,
        compared=[short(record.digest) for record in records],
        sizes=_sizes([column.size for column in columns]),
        unknown=unknown,
        most=MOST,
        offered=[one for one in reversed(everything) if one.digest not in chosen][:MOST_OFFERED],
        verdict=which_is_better(names, found, rows, mean, experts, final=sum(not column.gone for column in columns) < 2)
        if len(columns) > 1
        else None,
        rows=rows,
        routed=[row for row in rows if any(value is not None for value in row.of("accuracy"))],
        mean=mean,
        best=best,
        small=small,
        with_intervals=any(cell.interval for row in rows for cell in row.read),
        on_windows=any(cell.losses for row in rows for cell in row.read),
        apart=[
            (at, cell, why_apart(cell.text, rival and (names[rival[0]], rival[1])))
            for at, cell, rival in apart(found, rows)
        ],
        command_line=_command(site, columns, known_files(job.words for job in jobs), small=small),
        more_windows=MORE_WINDOWS,
        to_evaluate=[column for column in lacking if folders_of(column.described.record)],
        like=None if small else _newest([column for column in columns if column not in lacking]),
        uncovered=left,
        lacking=[name for name, own, score in scores if score is None and own],
        unscored=[name for name, own, _ in scores if not own],
    )


def _requested(site: Site, asked: Sequence[str]) -> tuple[list[CompositionRecord], list[str]]:
    """Return the compositions that digests name, and the digests that name none; there must be one at least."""
    if not asked:
        raise InvalidInputError("no composition is chosen", f"tick two to {MOST} in the list of compositions")
    found: dict[str, CompositionRecord] = {}
    unknown = []
    for digest in asked[:_MOST_READ]:
        try:
            record = site.composition(digest)
        except NotFoundError:
            unknown.append(digest)
        else:
            found[record.digest] = record
    if not found:
        raise NotFoundError(f"there is no composition {unknown[0]!r}", "reg compositions")
    return list(found.values()), unknown


def _names(records: Sequence[CompositionRecord]) -> list[str]:
    """Return a name for each composition, with the beginning of its digest where two have one title."""
    titles = [title(record) for record in records]
    return [
        f"{name} ({short(record.digest)})" if titles.count(name) > 1 else name
        for name, record in zip(titles, records, strict=True)
    ]


def _sizes(found: Sequence[Size]) -> list[tuple[str, list[str]]]:
    """Return the rows of the sizes: label, and a text for each composition, empty where it is not known."""
    rows = [
        ("Parameters", [one.parameters and compact(one.parameters) for one in found]),
        ("of them for context routing", [one.routing and compact(one.routing) for one in found]),
        ("Parameters per token", [one.active and compact(one.active) for one in found]),
        ("On disk", [one.nbytes and size(one.nbytes) for one in found]),
    ]
    return [(label, [text or "" for text in texts]) for label, texts in rows if any(texts)]


def address(records: Sequence[CompositionRecord]) -> str:
    """Return the address of compositions side by side."""
    return url("compositions", "compare", c=[short(record.digest) for record in records])


def compared(query: QueryParams) -> list[str]:
    """Return the digests of the compositions side by side on the page that a query or a form comes from, if any."""
    return query.getlist("c")[:MOST]


def _newest(columns: Sequence[Column]) -> Column | None:
    """Return the column that was evaluated last; None if none was."""
    scored = [(column.score.at, at) for at, column in enumerate(columns) if column.score is not None]
    return columns[max(scored)[1]] if scored else None


def _lacking(columns: Sequence[Column], mean: Mean | None, read: Sequence[set[int]], *, small: bool) -> list[Column]:
    """Return the columns to evaluate again, so that all are scored on the same text; `small`: on few tokens so far.

    With a mean they are those without a score of it, and those that did not read the text of a domain that it leaves
    out (`read`: for each such domain, who did). Without one they are all but the one that was evaluated last.
    """
    last = None if small or mean is not None else _newest(columns)
    return [
        column
        for at, column in enumerate(columns)
        if column is not last
        and not column.gone
        and (small or mean is None or mean.scores[at] is None or any(at not in readers for readers in read))
    ]


def _command(site: Site, columns: Sequence[Column], known: Mapping[str, Sequence[str]], *, small: bool) -> str:
    """Return the command that evaluates them on the same text; `known`: files of a domain's text, the latest first."""
    able = [column for column in columns if not column.gone]
    if len(able) < 2:
        return ""
    domains = dict.fromkeys(domain for column in able for domain in domains_of(column.described.record, column.score))
    named = {domain: known.get(domain, ["FILE"])[0] for domain in [*domains][:MOST_DOMAINS] or ["DOMAIN"]}
    data = [word for domain, file in named.items() for word in ("--data", f"{domain}={file}")]
    more = ["--windows", MORE_WINDOWS] if small else []
    return site.command_line("evaluate", *(column.folder or PLACE for column in able), *more, *data)
