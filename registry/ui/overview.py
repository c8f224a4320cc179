"""The first page, with what the registry holds, what was made lately and its health; and the page of the log."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from registry.destination.address import may_exist
from registry.evaluation.stored import Score, scores_of, widest_first
from registry.io.display import counted
from registry.registry import Registry
from registry.ui.describing import Described, describe
from registry.ui.site import Paging, Site, url, whole
from registry.ui.wording import day
from store.catalog import CompositionRecord, VersionRecord
from store.catalog.records import Kind

PAGE = 50  # versions per page
TAGS = 24  # tags that the list offers as filters
SEARCH_CHARACTERS = 200  # maximum length of a search; the rest is ignored
RECENT = 200  # compositions, the latest, whose scores the page looks at
LATELY, DOMAINS = 5, 3  # numbers of compositions made lately, and of an expert's domains that the page shows
BEST, RANKINGS = 3, 3  # numbers of compositions of a ranking, and of rankings, that the page shows
LOG_PAGE = 100  # events per page of the log
LOG_EVENTS = 20_000  # events up to which the page verifies the log; `reg verify` verifies any
FOLDERS = 3  # folders with opted-out experts that the page names


@dataclass(frozen=True)
class Check:
    """One line of the registry's health."""

    good: bool  # it asks for nothing
    text: str
    command: tuple[str, ...] = ()  # the words of the command that mends it
    folders: Sequence[tuple[str, CompositionRecord, Sequence[str]]] = ()  # with opted-out experts, and their references


def overview(site: Site, request: Request) -> Response:
    """Return all versions, filtered by words, kind and tags, in pages; without filters also what was made of them."""
    query = request.query_params
    search = query.get("q", "").strip()[:SEARCH_CHARACTERS]
    kind = cast(Kind, query["kind"]) if query.get("kind") in ("expert", "base") else None
    everything = query.get("all") == "1"
    chosen = [tag for tag in dict.fromkeys(query.getlist("tag")) if "=" in tag]
    tags = {key: value for key, _, value in (tag.partition("=") for tag in chosen)}

    def at(page: int = 1, **other: object) -> str:
        now: dict[str, object] = {"q": search, "kind": kind, "tag": chosen, "all": everything}
        return url(**(now | {"page": None if page == 1 else page} | other))

    def toggled(tag: str) -> list[str]:
        return [other for other in chosen if other != tag] if tag in chosen else [*chosen, tag]

    registry = site.registry
    total = registry.count_versions(kind=kind, everything=everything, tags=tags, search=search)
    paging = Paging(whole(request, "page", 1), total, PAGE, at)
    versions = registry.versions(
        kind=kind, everything=everything, tags=tags, search=search, limit=PAGE, offset=paging.offset
    )
    offered_tags = [f"{tag.key}={tag.value}" for tag in registry.tag_counts(TAGS)]
    offered_tags += [tag for tag in chosen if tag not in offered_tags]
    made = site.index.get("made", lambda: _made(registry))
    whole_registry = not (search or kind or chosen) and paging.number == 1
    health = _health(site) if whole_registry else []
    return site.render(
        request,
        "overview.html",
        names={version.name for version in versions if version.kind == "expert"},
        groups=_groups(versions),
        counts={each: registry.count_versions(kind=each) for each in ("expert", "base")},
        paging=paging,
        search=search,
        kind=kind,
        everything=everything,
        chosen=chosen,
        tags=[(tag, tag in chosen, at(tag=toggled(tag))) for tag in offered_tags],
        registered=bool(total) or registry.count_versions(everything=True) > 0,
        made=made,
        health=health,
        most_folders=FOLDERS,
        attention=not all(check.good for check in health),
        whole_registry=whole_registry,
    )


def _groups(versions: Sequence[VersionRecord]) -> list[list[VersionRecord]]:
    """Return the versions of each name, the latest first; an active one stands before all others."""
    return [
        sorted(same, key=lambda version: (version.state == "active", version.number), reverse=True)
        for _, same in groupby(versions, key=lambda version: version.name)
    ]


def _made(registry: Registry) -> dict[str, Any]:
    """Return a summary of the registry's compositions: their number, the latest ones, and rankings of `RECENT`.

    Also version → what it gets in the best evaluation with it (`handled`: that of most domains, then of the highest
    average score), and in how many compositions it is (`uses`).
    """
    records = registry.compositions()
    handled: dict[str, dict[str, Any]] = {}
    described, scored = [], []
    for number, record in enumerate(reversed(records[-RECENT:])):
        earlier = records[: len(records) - 1 - number][-RECENT:] if number < LATELY else ()
        scores = scores_of(registry.evaluations(record), record)
        shown = next(iter(widest_first(scores, record)), None)
        described.append(describe(record, earlier, shown))
        scored += [(one, described[-1]) for one in scores]
        if shown is None:
            continue
        rank = len(shown.domains), -1.0 if shown.average is None else shown.average
        for ref, shares in _shares(record, shown).items():
            if ref not in handled or handled[ref]["rank"] < rank:  # of equal ones the latest stays
                handled[ref] = {"record": record, "score": shown, "shares": shares, "rank": rank}
    return {
        "number": len(records),
        "lately": described[:LATELY],
        "rankings": _rankings(scored),
        "handled": handled,
        "uses": Counter(ref for record in records for ref in record.members),
    }


def _shares(record: CompositionRecord, score: Score) -> dict[str, list[tuple[str, float]]]:
    """Return expert of a composition → the domains of which it gets the largest shares, from 0 to 1, largest first."""
    routing = score.document["figures"].get("routing") or {}
    found = {}
    for ref in record.members:
        name = ref.partition("@")[0]
        shares = [(domain, fmean(experts[name])) for domain, experts in routing.items() if experts.get(name)]
        if shares:
            found[ref] = sorted(shares, key=lambda share: -share[1])[:DOMAINS]
    return found


def _rankings(scored: Sequence[tuple[Score, Described]]) -> list[dict[str, Any]]:
    """Return the `best` compositions on one text of `domains`, and how many were scored `elsewhere`, on other text.

    Of several texts of the same domains it is that of most compositions, then of most tokens. Of one composition the
    latest of the `scored` evaluations comes first.
    """
    by_domains: dict[tuple[str, ...], dict[Hashable, dict[str, tuple[float, Described]]]] = {}
    tokens: dict[Hashable, int] = {}
    for score, one in scored:
        if score.average is not None:
            text = score.reads()
            same = by_domains.setdefault(tuple(sorted(score.domains)), {}).setdefault(text, {})
            same.setdefault(one.record.digest, (score.average, replace(one, score=score)))
            tokens[text] = score.tokens
    rankings: list[dict[str, Any]] = []
    shown: set[str] = set()
    for domains, texts in sorted(by_domains.items(), key=lambda group: -len(group[0])):
        read_most = max(texts, key=lambda each: (len(texts[each]), tokens[each]))
        ordered = sorted(texts[read_most].values(), key=lambda pair: -pair[0])
        elsewhere = len(set().union(*texts.values())) - len(ordered)
        if len(ordered) > 1 or ordered[0][1].record.digest not in shown:  # one that stands above ranks nothing here
            best = [one for _, one in ordered[:BEST]]
            rankings.append({"domains": domains, "best": best, "elsewhere": elsewhere})
            shown.update(one.record.digest for _, one in ordered)
    return rankings[:RANKINGS]


def _health(site: Site) -> list[Check]:
    """Return the lines of the registry's health; folders are looked for each time, as anybody may delete them."""
    checks, affected = site.index.get("health", lambda: _kept_checks(site.registry))
    folders = [one for one in affected if may_exist(one[0])]
    text = f"{counted(len(folders), 'composed folder')} may still contain opted-out experts:"
    return [*checks, Check(False, text, folders=folders)] if folders else checks


def _kept_checks(registry: Registry) -> tuple[list[Check], list[tuple[str, CompositionRecord, list[str]]]]:
    """Return the checks that hold until the registry changes, and the folders made from opted-out versions."""
    checks = []
    events = next((event.id for event in registry.log(limit=1)), 0)
    if events > LOG_EVENTS:
        checks.append(Check(True, f"the log has {counted(events, 'event')}, too many to verify here"))
    elif (broken := registry.catalog.chain().broken) is not None:
        checks.append(Check(False, f"the log was changed or is incomplete at {broken}", ("verify",)))
    else:
        checks.append(Check(True, f"the log is intact: {counted(events, 'event')}"))
    gone = [one for one in registry.versions(everything=True) if one.state != "active"]
    if withdrawn := [one for one in gone if one.state == "withdrawn"]:
        refs = ", ".join(one.ref for one in withdrawn[:FOLDERS]) + (" and others" if len(withdrawn) > FOLDERS else "")
        text = f"{counted(len(withdrawn), 'opted-out version')} not purged, still stored: {refs}"
        checks.append(Check(False, text, ("opt-out", withdrawn[0].ref, "--purge")))
    made = registry.catalog.compositions(gone) if gone else []
    refs_gone = {version.ref for version in gone}
    affected = {folder: record for record in made for folder in record.folders}
    return checks, [
        (folder, record, [ref for ref in record.members if ref in refs_gone])
        for folder, record in sorted(affected.items(), key=lambda pair: pair[0])
    ]


def log(site: Site, request: Request) -> Response:
    """Return the log, newest first, by day."""
    before = whole(request, "before", 0) or None
    events = site.registry.log(limit=LOG_PAGE + 1, before=before)
    older = url("log", before=events[LOG_PAGE - 1].id) if len(events) > LOG_PAGE else None
    days = [(name, list(found)) for name, found in groupby(events[:LOG_PAGE], key=lambda event: day(event.at))]
    return site.render(
        request,
        "log.html",
        days=days,
        older=older,
        before=before,
        opted_out_here=next((event.subject for event in events[:LOG_PAGE] if event.action in ("opt-out", "purge")), ""),
        attributed=any(event.actor for event in events[:LOG_PAGE]),
    )
