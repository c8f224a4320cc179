"""DUME's curves over the text of its statistics: the first tokens of documents, and text of other origin."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.papers.bench import BASE, DUME, NEAR, WEIGHT_ONE, Bench, Figures, fresh
from benchmarks.papers.tables import Found
from registry import PassSettings, Registry

FIRST_TOKENS = (2, 4, 8, 16, 64, 256)
TOKENS = 8_192
"""Calibration tokens of an expert, at most."""
OTHER_WORKS = {"literature": "history_philosophy"}
"""Domain → text of the same language and kind from other works, where there is any."""
DOCUMENT_TOKENS, TEXT = "first tokens of a document", "text of the statistics"
RECIPES = {"": DUME, ", weight 1": WEIGHT_ONE}
"""End of a curve's name → its recipe."""
ALL, OWN, RELATED, SAMPLED = "all", "own", "related", "self-sampled"


def statistics_curves(bench: Bench) -> Figures:
    """Collect the statistics of SHARED's experts on other text, and score DUME's recipe with each.

    All tokens are those of windows anywhere in the expert's own text.
    """
    own = {domain: [bench.text(domain, "train")] for domain in NEAR}
    related = {domain: [bench.text(OTHER_WORKS.get(domain, domain), "train")] for domain in NEAR}
    anywhere = PassSettings(TOKENS, sites="router")
    runs: dict[tuple[str, str], tuple[Mapping[str, Sequence[Path]], PassSettings]] = {
        (DOCUMENT_TOKENS, str(first)): (own, PassSettings(TOKENS, sites="router", document_tokens=first))
        for first in FIRST_TOKENS
    }
    runs[DOCUMENT_TOKENS, ALL] = (own, anywhere)
    runs[TEXT, RELATED] = (related, anywhere)
    runs[TEXT, SAMPLED] = (dict.fromkeys(NEAR, ()), anywhere)
    curves = [f"{name}{label}" for name in (DOCUMENT_TOKENS, TEXT) for label in RECIPES]
    scores: dict[str, dict[str, float | None]] = {name: {} for name in curves}
    tokens: dict[str, dict[str, int]] = {name: {} for name in curves}
    for number, ((name, value), (text, settings)) in enumerate(runs.items()):
        found, count = _scored(bench, f"statistics-{number}", text, settings)
        for label, score in zip(RECIPES, found, strict=True):
            for curve, point in ((name, value), *([(TEXT, OWN)] if value == ALL else [])):
                scores[curve + label][point], tokens[curve + label][point] = score, count
    return {"curves": scores, "tokens": tokens}


def _scored(
    bench: Bench, name: str, text: Mapping[str, Sequence[Path]], settings: PassSettings
) -> tuple[list[float | None], int]:
    """Return the mean scores of compositions of the experts with these statistics, and the tokens they are of."""
    home, folders = bench.work / name, [fresh(bench, f"{name}-{number}") for number in range(len(RECIPES))]
    shutil.rmtree(home, ignore_errors=True)
    with Registry(home) as registry:
        registry.add_base(BASE, bench.shared / "experts" / BASE)
        tokens = 0
        for domain, files in text.items():
            checkpoint = bench.shared / "experts" / domain
            added = registry.add_expert(domain, checkpoint, data=files, settings=settings, keep_calibration=True)
            tokens += added.version.statistics[0].tokens
        for folder, recipe in zip(folders, RECIPES.values(), strict=True):
            registry.compose(list(NEAR), folder, recipe)
        rows = registry.evaluate(folders, bench.tests(NEAR, general=False), bench.settings)
    return [row.average for row in rows], tokens


def section(found: Found) -> Iterator[str]:
    """Yield the tables of both curves."""
    if "statistics-curves" not in found:
        return
    figures = found["statistics-curves"]
    yield ""
    yield "Scores of DUME with statistics of other text, of the experts of `../shared/experts`, on"
    yield f"{figures['size']['windows']} test windows of each domain. *{DOCUMENT_TOKENS}*: so many at most, a window"
    yield "each; *all* are windows anywhere in the text. *Tokens* are those of all experts together: fewer where"
    yield f"documents are few or short. *{TEXT}*: *{OWN}* is what each expert was trained on; *{RELATED}* is the same,"
    yield "but literature's comes from works of history and philosophy: no other domain here has more text of its"
    yield f"language and kind; *{SAMPLED}* is what each expert writes."
    for name, curve in figures["curves"].items():
        yield ""
        yield f"| {name} | {' | '.join(curve)} |"
        yield f"| --- | {'---: | ' * len(curve)}".rstrip()
        yield f"| tokens | {' | '.join(f'{number:,}' for number in figures['tokens'][name].values())} |"
        yield f"| mean score | {' | '.join(f'{score:.2f}' for score in curve.values())} |"


PARTS = {"statistics-curves": statistics_curves}
