"""Soup-of-Experts: specialists against one model of all text (Fig. 4), the support (Fig. 8), samples (Fig. 7)."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers.bench import BASE, NEAR, Bench, Figures, averaged, fresh, kept, register_base
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, Registry, SoupTraining
from registry.evaluation.results import Row

EXPERTS = 4
SHARE = 0.25
"""Tokens of a training, in those of an expert."""
CLUSTERS = 16
"""Clusters of all text, a soup's domains: more than the fewest documents can tell apart."""
CLUSTERED = 400
"""Documents of each domain that are clustered: each passes through the base model."""
SUPPORTS = (1, 2, CLUSTERS)
GENERIC = "generic model"
LIKE = 100
"""Documents of a domain by which its specialist is made."""
SAMPLES = (1, 3, 10, LIKE)
DRAWS = 3
"""Times that so many other documents are taken; figures are means."""
UNSEEN = "history_philosophy"
"""A domain on none of whose text a soup was trained."""


def support(number: int) -> str:
    """Return the name of the row of a soup."""
    return f"soup, support {number}"


def documents(number: int) -> str:
    """Return the name of the row of what so many documents give."""
    return f"documents: {number}"


def soups(bench: Bench) -> Figures:
    """Train a soup of each support and a generic model on a quarter of the tokens of an expert, and score specialists.

    A soup's domains are clusters, without labels, of the text of all experts, on which the generic model trains too.
    Specialists are by algorithm 3: documents of a domain, none of them trained on, are counted by nearest cluster.
    """
    text = {"all": [bench.work / f"clustered-{domain}.jsonl" for domain in NEAR]}
    for domain, file in zip(NEAR, text["all"], strict=True):
        file.write_text("".join(bench.lines(domain, "train", CLUSTERED)), encoding="utf-8")
    rows: dict[str, dict[str, Row]] = {}
    with Registry(bench.work / f"soups-{bench.tokens}") as registry:
        names = register_base(registry, bench)
        generic = fresh(bench, "generic")
        registry.train_expert("generic", BASE, text["all"], ExpertTraining(**bench.mixed_training(SHARE)), out=generic)
        for number in SUPPORTS:
            if (name := _name(number)) not in names:
                settings = SoupTraining(EXPERTS, support=number, clusters=CLUSTERS, **bench.mixed_training(SHARE))
                registry.train_soup(name, BASE, text, settings)
        for domain in (*NEAR, UNSEEN):
            folders = {GENERIC: [generic]}
            folders |= {support(one): [_specialist(registry, bench, one, domain)] for one in SUPPORTS}
            for number in SAMPLES if domain == UNSEEN else ():
                drawn = [_specialist(registry, bench, 2, domain, number, draw) for draw in range(DRAWS)]
                folders[documents(number)] = drawn
            tests = {domain: [bench.text(domain, "test")]}
            every = dict.fromkeys(one for several in folders.values() for one in several)  # one is a draw, too
            found = registry.evaluate(list(every), tests, bench.settings)
            of = {row.name: row for row in found}
            for name, several in folders.items():
                rows.setdefault(name, {})[domain] = averaged([of[folder.name] for folder in several])
    joined = {name: _joined(of) for name, of in rows.items()}
    return {**kept(joined), "experts": EXPERTS, "clusters": CLUSTERS, "documents": LIKE, "draws": DRAWS}


def _name(number: int) -> str:
    return f"support-{number}"


def _specialist(registry: Registry, bench: Bench, number: int, domain: str, count: int = LIKE, draw: int = 0) -> Path:
    """Return what a soup gives of so many documents of a domain."""
    lines = bench.lines(domain, "train", CLUSTERED + (draw + 1) * LIKE)[CLUSTERED + draw * LIKE :][:count]
    like, folder = bench.work / "like.jsonl", fresh(bench, f"{_name(number)}-{domain}-{count}-{draw}")
    like.write_text("".join(lines), encoding="utf-8")
    registry.instantiate(_name(number), folder, like=[like])
    return folder


def _joined(of: dict[str, Row]) -> Row:
    """Return a row of several domains, out of a row of each."""
    perplexity = {domain: row.perplexity[domain] for domain, row in of.items()}
    return Row("", perplexity, {}, losses={domain: row.losses[domain] for domain, row in of.items()})


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on soups."""
    if "soups" not in found:
        return
    of = found["soups"]
    yield f"Soups of {of['experts']} experts whose domains are {of['clusters']} clusters of all text, without labels."
    yield "Each read a quarter of the tokens of an expert, as the generic model did. In each column is the specialist"
    yield f"of that domain: the clusters' weights are counted from {of['documents']} other documents of it (algorithm"
    yield f"3). None of the text is of {UNSEEN}."
    yield ""
    yield from table({name: row for name, row in of["rows"].items() if len(row) > 1})
    yield ""
    yield f"Perplexity on {UNSEEN} by the number of documents, means of {of['draws']} draws of them; support 2:"
    yield ""
    yield from table({name: row for name, row in of["rows"].items() if len(row) == 1})


PARTS = {"soups": soups}
