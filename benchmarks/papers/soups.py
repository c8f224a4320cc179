"""Soup-of-Experts: its specialists against one model of all text, the support (Fig. 8) and the samples (Fig. 7)."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers.bench import BASE, NEAR, Bench, Figures, fresh
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, Registry, SoupTraining

EXPERTS = 4
SUPPORTS = (1, 2, 5)
SAMPLES = (1, 4, 16, 64)
"""Documents of a domain that its domain weights are counted from."""


def home(bench: Bench) -> Path:
    """Return the registry of the soups."""
    return bench.work / f"soups-{bench.tokens}"


def soups(bench: Bench) -> Figures:
    """Train a soup of each support on twice as many tokens as an expert, and score its specialists.

    A specialist has all weight on its domain. The generic model trains all weights on the same number of tokens, which
    every domain shares equally.
    """
    tests, training = bench.tests(NEAR, general=False), bench.mixed_training(2)
    rows: dict[str, dict[str, float]] = {}
    folders: dict[str, Path] = {}
    with Registry(home(bench)) as registry:
        names = {version.name for version in registry.versions()}
        if BASE not in names:
            registry.add_base(BASE, bench.shared / "experts" / BASE)
        folders["generic model"] = fresh(bench, "generic")
        text = [bench.text(domain, "train") for domain in NEAR]
        registry.train_expert("generic", BASE, text, ExpertTraining(**training), out=folders["generic model"])
        domains = {domain: [bench.text(domain, "train")] for domain in NEAR}
        for support in SUPPORTS:
            if (name := f"support-{support}") not in names:
                registry.train_soup(name, BASE, domains, SoupTraining(EXPERTS, support=support, **training))
            for domain in NEAR:
                folders[f"{support} {domain}"] = fresh(bench, f"soup-{support}-{domain}")
                registry.instantiate(name, folders[f"{support} {domain}"], weights={domain: 1.0})
        found = registry.evaluate(list(folders.values()), tests, bench.settings)
    of = {row.name: row.perplexity for row in found}
    rows["generic model"] = of[folders["generic model"].name]
    for support in SUPPORTS:
        own = {domain: of[folders[f"{support} {domain}"].name] for domain in NEAR}
        rows[f"soup, support {support}"] = {domain: own[domain][domain] for domain in NEAR}
    crossed = {domain: of[folders[f"{SUPPORTS[1]} {domain}"].name] for domain in NEAR}
    return {"rows": rows, "specialists": crossed, "experts": EXPERTS}


def samples(bench: Bench) -> Figures:
    """Count domain weights from few documents of a domain, and score the specialist that they give on its test text."""
    domain, perplexity = NEAR[0], {}
    with Registry(home(bench)) as registry:
        folders = {}
        for number in SAMPLES:
            like = bench.work / f"like-{number}.jsonl"
            like.write_text("".join(bench.lines(domain, "train", number)), encoding="utf-8")
            folders[number] = fresh(bench, f"like-{number}")
            registry.instantiate(f"support-{SUPPORTS[1]}", folders[number], like=[like])
        found = registry.evaluate(list(folders.values()), {domain: [bench.text(domain, "test")]}, bench.settings)
    of = {row.name: row.perplexity[domain] for row in found}
    perplexity = {str(number): of[folder.name] for number, folder in folders.items()}
    return {"domain": domain, "perplexity": perplexity}


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on soups."""
    if "soups" not in found:
        return
    of = found["soups"]
    yield f"Soups of {of['experts']} experts, trained on twice as many tokens as an expert, as the generic model was."
    yield "In each column is the perplexity of the specialist of that domain, all weight on it."
    yield ""
    yield from table(of["rows"])
    if "soup-samples" in found:
        samples = found["soup-samples"]
        yield ""
        yield f"Perplexity on {samples['domain']} by the number of its documents that domain weights are counted from:"
        yield ""
        yield f"| documents | {' | '.join(samples['perplexity'])} |"
        yield f"| --- | {'---: | ' * len(samples['perplexity'])}".rstrip()
        yield f"| perplexity | {' | '.join(f'{value:.2f}' for value in samples['perplexity'].values())} |"


PARTS = {"soups": soups, "soup-samples": samples}
