"""Soup-of-Experts: its specialists against one model of all text, the support (Fig. 8) and the samples (Fig. 7)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.papers.bench import BASE, NEAR, Bench, Figures, averaged, fresh, kept, register_base
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, Registry, SoupTraining

EXPERTS = 4
SUPPORTS = (1, 2, 5)
GENERIC = "generic model"
SAMPLES = (1, 3, 10, 100)
"""Documents that domain weights are counted from."""
DRAWS = 3
"""Times that so many other documents are taken; figures are means."""
CLUSTERS = 16
"""Clusters of all text that are the domains of the soup of `samples`: more than the fewest documents can tell apart."""
CLUSTERED = 1000
"""Documents of each domain that are clustered: each passes through the base model."""
UNSEEN = "history_philosophy"
"""The domain of the documents, on none of whose text a soup was trained."""


def support(number: int) -> str:
    """Return the name of the row of a soup."""
    return f"soup, support {number}"


def documents(number: int) -> str:
    """Return the name of the row of what so many documents give."""
    return f"documents: {number}"


def home(bench: Bench) -> Path:
    """Return the registry of the soups."""
    return bench.work / f"soups-{bench.tokens}"


def soups(bench: Bench) -> Figures:
    """Train a soup of each support on twice as many tokens as an expert, and score its specialists.

    A specialist has all weight on its domain. The generic model trains all weights on the same number of tokens, which
    every domain shares equally.
    """
    tests, training = bench.tests(NEAR, general=False), bench.mixed_training(2)
    folders: dict[str, Path] = {}
    with Registry(home(bench)) as registry:
        names = register_base(registry, bench)
        folders[GENERIC] = fresh(bench, "generic")
        text = [bench.text(domain, "train") for domain in NEAR]
        registry.train_expert("generic", BASE, text, ExpertTraining(**training), out=folders[GENERIC])
        domains = {domain: [bench.text(domain, "train")] for domain in NEAR}
        for number in SUPPORTS:
            if (name := f"support-{number}") not in names:
                registry.train_soup(name, BASE, domains, SoupTraining(EXPERTS, support=number, **training))
            for domain in NEAR:
                folders[f"{number} {domain}"] = fresh(bench, f"soup-{number}-{domain}")
                registry.instantiate(name, folders[f"{number} {domain}"], weights={domain: 1.0})
        found = registry.evaluate(list(folders.values()), tests, bench.settings)
    of = {row.name: row for row in found}
    rows = {GENERIC: of[folders[GENERIC].name]}
    for number in SUPPORTS:
        own = {domain: of[folders[f"{number} {domain}"].name] for domain in NEAR}
        rows[support(number)] = replace(
            rows[GENERIC],
            perplexity={domain: row.perplexity[domain] for domain, row in own.items()},
            losses={domain: row.losses[domain] for domain, row in own.items()},
        )
    return {**kept(rows), "experts": EXPERTS}


def samples(bench: Bench) -> Figures:
    """Count domain weights from few documents of a domain that no soup was trained on, and score what they give.

    The soup's domains are clusters. Text of the same domain is scored by the generic model, which `soups` trained.
    """
    generic, name, folders = bench.work / "folders" / "generic", "clusters", dict[tuple[int, int], Path]()
    lines = bench.lines(UNSEEN, "train", DRAWS * max(SAMPLES))
    with Registry(home(bench)) as registry:
        if name not in register_base(registry, bench):
            text = {"all": [bench.work / f"clustered-{domain}.jsonl" for domain in NEAR]}
            for domain, file in zip(NEAR, text["all"], strict=True):
                file.write_text("".join(bench.lines(domain, "train", CLUSTERED)), encoding="utf-8")
            settings = SoupTraining(EXPERTS, support=SUPPORTS[1], clusters=CLUSTERS, **bench.mixed_training(2))
            registry.train_soup(name, BASE, text, settings)
        for number in SAMPLES:
            for draw in range(DRAWS):
                like = bench.work / f"like-{number}-{draw}.jsonl"
                like.write_text("".join(lines[draw * max(SAMPLES) :][:number]), encoding="utf-8")
                folders[number, draw] = fresh(bench, f"like-{number}-{draw}")
                registry.instantiate(name, folders[number, draw], like=[like])
        tests = {UNSEEN: [bench.text(UNSEEN, "test")]}
        found = registry.evaluate([generic, *folders.values()], tests, bench.settings)
    of = {row.name: row for row in found}
    drawn = {number: [of[folders[number, draw].name] for draw in range(DRAWS)] for number in SAMPLES}
    rows = {GENERIC: of[generic.name]} | {documents(number): averaged(several) for number, several in drawn.items()}
    return {**kept(rows), "domain": UNSEEN, "clusters": CLUSTERS, "draws": DRAWS}


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on soups."""
    if "soups" not in found:
        return
    of = found["soups"]
    yield f"Soups of {of['experts']} experts, trained on twice as many tokens as an expert, as the generic model was."
    yield "In each column is the perplexity of the specialist of that domain, all weight on it."
    yield ""
    yield from table(of["rows"])
    if "rows" in (samples := found.get("soup-samples", {})):
        yield ""
        yield f"A soup of {samples['clusters']} clusters of the same text, on a domain that none of it is of: by the"
        yield "number of documents that the clusters' weights are counted from, means of"
        yield f"{samples['draws']} draws of documents."
        yield ""
        yield from table(samples["rows"])


PARTS = {"soups": soups, "soup-samples": samples}
