"""The list of compositions: searched, narrowed and sorted by the address, in pages."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from registry.errors import NotFoundError
from registry.evaluation.stored import Score, scores_of, widest_first
from registry.registry import Registry
from registry.ui.describing import EARLIER, Described, describe, difference, kind, sentences, title
from registry.ui.site import Paging, Site, url, whole
from store.catalog import CompositionRecord, EvaluationRecord

PAGE = 25  # compositions per page
SORTS = {"newest": "newest first", "score": "best score first", "name": "name"}
"""Order → its words; the first is the order of an address that names none."""

MOST_DOMAINS = 200  # domains that the filter offers

_CHARACTERS = 200


@dataclass(frozen=True)
class Wanted:
    """The search, filters and order of an address."""

    search: str  # words that must all be in what pages say of a composition, or the beginning of its digest
    of: str  # a member, as a name or a version, or the beginning of a digest
    domain: str  # of which a score is wanted
    sort: str
    gone: bool  # only those that contain an opted-out version

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> "Wanted":
        """Return those of a query."""
        search, of, domain = (query.get(name, "").strip()[:_CHARACTERS] for name in ("q", "of", "domain"))
        sort = query.get("sort", "")
        return cls(search, of, domain, sort if sort in SORTS else next(iter(SORTS)), query.get("gone") == "1")

    @property
    def narrows(self) -> bool:
        """True if some compositions may be left out."""
        return bool(self.search or self.of or self.domain or self.gone)

    def address(self, page: int = 1) -> str:
        """Return the address of a page of the list."""
        sort = self.sort if self.sort != next(iter(SORTS)) else None
        number = page if page > 1 else None
        return url(
            "compositions", q=self.search, of=self.of, domain=self.domain, gone=self.gone, sort=sort, page=number
        )


def compositions(site: Site, request: Request) -> Response:
    """Return the compositions that an address asks for, in pages."""
    registry, wanted = site.registry, Wanted.of_query(request.query_params)
    everything = registry.compositions()
    scores = site.index.get("scores", lambda: _scores(registry, everything))
    before = {record.digest: at for at, record in enumerate(everything)}
    shown = _shown(scores, wanted.domain)
    found = _ordered(_matching(site, everything, wanted, shown), wanted, shown)
    paging = Paging(whole(request, "page", 1), len(found), PAGE, wanted.address)

    def described(record: CompositionRecord) -> Described:
        earlier = everything[: before[record.digest]][-EARLIER:] if record.digest in before else ()
        return describe(record, earlier, shown.get(record.digest))

    lines = [described(record) for record in found[paging.offset : paging.offset + PAGE]]
    domains = sorted({domain for each in scores.values() for score in each for domain in score.domains})
    return site.render(
        request,
        "compositions.html",
        names={ref.partition("@")[0] for line in lines for ref in line.experts},
        lines=lines,
        paging=paging,
        wanted=wanted,
        sorts=SORTS,
        domains=list(dict.fromkeys([*domains[:MOST_DOMAINS], *([wanted.domain] if wanted.domain else [])])),
        any_made=bool(everything),
        comparable=len(everything) > 1,
        mixed=_mixed([shown[one.digest] for one in found if one.digest in shown], wanted.domain),
    )


def _scores(registry: Registry, everything: Sequence[CompositionRecord]) -> dict[str, list[Score]]:
    """Return digest → the scores of each evaluation, first those of the widest."""
    found: dict[str, list[EvaluationRecord]] = {}
    for evaluation in registry.catalog.evaluations():
        found.setdefault(evaluation.composition, []).append(evaluation)
    known = {record.digest: record for record in everything}
    scores = {digest: scores_of(evaluations, known.get(digest)) for digest, evaluations in found.items()}
    return {digest: widest_first(each, known.get(digest)) for digest, each in scores.items()}


def _shown(scores: Mapping[str, Sequence[Score]], domain: str) -> dict[str, Score]:
    """Return digest → the scores that the list shows: those of the widest evaluation.

    Of a domain it is, where there is one, that on the text that most compositions read; then on most of its tokens.
    """
    if not domain:
        return {digest: each[0] for digest, each in scores.items()}
    with_it = {digest: found for digest, each in scores.items() if (found := [s for s in each if domain in s.domains])}
    readers = Counter(text for each in with_it.values() for text in {one.reads(domain) for one in each})
    return {
        digest: max(each, key=lambda one: (readers[one.reads(domain)], one.rows[domain].tokens, one.at))
        for digest, each in with_it.items()
    }


def _mixed(scores: Sequence[Score], domain: str) -> str | None:
    """Return what differs between the texts that scores are on, in words; None where all compare."""
    if domain:
        of_it = {one.reads(domain) for one in scores if domain in one.rows and one.rows[domain].score is not None}
        return f"other text or another expert of {domain}" if len(of_it) > 1 else None
    averages = [one for one in scores if one.average is not None]
    over = {frozenset(one.domains) for one in averages}
    least, most = (pick(map(len, over), default=0) for pick in (min, max))
    if len(over) > 1:
        return f"{least} to {most} domains" if least < most else f"{most} other domains"
    return "the same domains, but not the same text" if len({one.reads() for one in averages}) > 1 else None


def _matching(
    site: Site, everything: Sequence[CompositionRecord], wanted: Wanted, shown: Mapping[str, Score]
) -> list[CompositionRecord]:
    found, gone = list(everything), site.opted_out()
    if wanted.of:
        try:
            found = site.registry.compositions(wanted.of)
        except NotFoundError:
            found = []
    words = wanted.search.casefold().split()
    if words:
        texts = site.index.get("texts", lambda: _texts(everything))
        found = [record for record in found if _has(record, words, texts.get(record.digest, ""), gone)]
    if wanted.gone:
        found = [record for record in found if not gone.isdisjoint(record.members)]
    return [record for record in found if not wanted.domain or record.digest in shown]


def _texts(everything: Sequence[CompositionRecord]) -> dict[str, str]:
    """Return digest → what pages say of a composition in words, in lower case."""
    known: dict[str, dict[str, str]] = {}
    found = {}
    for at, record in enumerate(everything):
        changed = difference(record, everything[max(0, at - EARLIER) : at], known)
        said = [*sentences(record.document), *(changed.words if changed else ())]
        found[record.digest] = "\n".join(
            [title(record), kind(record.document), *said, *record.members, *record.folders]
        ).casefold()
    return found


def _has(record: CompositionRecord, words: Sequence[str], text: str, gone: Set[str]) -> bool:
    text += "" if gone.isdisjoint(record.members) else "\nopted out\nopted-out"
    return all(word in text or record.digest.startswith(word) for word in words)


def _ordered(found: Sequence[CompositionRecord], wanted: Wanted, shown: Mapping[str, Score]) -> list[CompositionRecord]:
    """Return compositions in the order that is asked for; of equal ones, and without a score, the latest first."""
    newest = list(reversed(found))
    if wanted.sort == "name":
        return sorted(newest, key=lambda record: title(record).casefold())
    if wanted.sort == "score":

        def worth(record: CompositionRecord) -> float:
            score = shown.get(record.digest)
            value = None if score is None else score.rows[wanted.domain].score if wanted.domain else score.average
            return float("-inf") if value is None else value

        return sorted(newest, key=worth, reverse=True)
    return newest
