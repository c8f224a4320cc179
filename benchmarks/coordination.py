"""Experts that were trained free, on a frozen trunk, and beside the public expert: what their compositions are worth.

    python -m benchmarks.coordination [--shared ../shared] [--tokens 204800] [--work build/coordination]

Every kind is trained from SHARED/experts/base on SHARED/corpora/<domain>/train.jsonl.gz with as many tokens, and
registered in a home of its own; every composition is scored on the same test windows. Perplexities are absolute: a
normalised score divides by each kind's own experts. What is there in --work is not trained again. Writes
COORDINATION.md beside this file.

Forward passes of one token: a coordinated expert's training passes two MLPs in every layer, the others' one.
"""

import argparse
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from registry import EnsembleRecipe, ExpertTraining, Recipe, Registry, TestSettings

DOMAINS = ("biomed", "code", "german", "literature", "math")
BASE, PAGE = "base", Path(__file__).with_name("COORDINATION.md")
KINDS = {
    "free": {"trunk": "free"},
    "frozen": {"trunk": "frozen"},
    "coordinated": {"trunk": "frozen", "coordinate": True},
}
"""Home → how its experts are trained."""

ANCHORED = {"trunk": "base", "router": "anchored"}
RECIPES: dict[str, dict[str, tuple[tuple[str, ...], Recipe | EnsembleRecipe]]] = {
    "free": {
        "average of all weights": (DOMAINS, Recipe(to="dense", trunk="mean")),
        "BTM: ensemble of whole models": (DOMAINS, EnsembleRecipe()),
        "DUME: trunk mean, ridge": (DOMAINS, Recipe(trunk="mean", router="ridge")),
        "trunk regmean, ridge": (DOMAINS, Recipe(router="ridge")),
        "the default recipe": (DOMAINS, Recipe()),
    },
    "frozen": {
        "random rows": (DOMAINS, Recipe(trunk="base", router="random", top_k=2, temperature=1.0)),
        "ridge": (DOMAINS, Recipe(trunk="base", router="ridge")),
        "context": (DOMAINS, Recipe(trunk="base")),
    },
    "coordinated": {
        "rows as trained, with the public expert": ((*DOMAINS, BASE), Recipe(**ANCHORED)),  # type: ignore[arg-type]
        "rows as trained, without it": (DOMAINS, Recipe(**ANCHORED)),  # type: ignore[arg-type]
        "random rows": (DOMAINS, Recipe(trunk="base", router="random", top_k=2, temperature=1.0)),
        "ridge": (DOMAINS, Recipe(trunk="base", router="ridge")),
        "context": (DOMAINS, Recipe(trunk="base")),
    },
}
"""Home → composition → its members and recipe."""


def trained(home: Path, kind: str, shared: Path, tokens: int) -> float:
    """Train and register the experts of a kind that are not there, and return the seconds that it took."""
    begun = time.monotonic()
    with Registry(home) as registry:
        names = {version.name for version in registry.versions()}
        if BASE not in names:
            registry.add_base(BASE, shared / "experts" / BASE)
        for domain in DOMAINS:
            if domain not in names:
                settings = ExpertTraining(tokens=tokens, batch_size=8, **KINDS[kind])  # type: ignore[arg-type]
                done = registry.train_expert(domain, BASE, [shared / "corpora" / domain / "train.jsonl.gz"], settings)
                print(f"{kind} {domain}: loss {done.losses.before:.3f}, {done.losses.after:.3f}", flush=True)
    return time.monotonic() - begun


def scored(home: Path, kind: str, shared: Path, work: Path, windows: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (row, domain → perplexity) of the experts of a kind and of their compositions."""
    data = {domain: [shared / "corpora" / domain / "test.jsonl.gz"] for domain in DOMAINS}
    with Registry(home) as registry:
        folders = []
        for number, (members, recipe) in enumerate(RECIPES[kind].values()):
            folder = work / f"{kind}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            registry.compose(list(members), folder, recipe)
            folders.append(folder)
        rows = registry.evaluate(folders, data, TestSettings(windows=windows), baselines=True)
    of = {row.name: row.perplexity for row in rows}
    for name, folder in zip(RECIPES[kind], folders, strict=True):
        yield name, of[folder.name]
    yield "each domain by its own expert, whole", {domain: of[f"expert {domain}"][domain] for domain in DOMAINS}
    yield "base model", of[f"base {BASE}@1"]


def page(rows: list[tuple[str, str, dict[str, float]]], tokens: int, windows: int, seconds: dict[str, float]) -> str:
    """Return COORDINATION.md."""
    lines = [
        "# Experts that were trained to be composed",
        "",
        "What `python -m benchmarks.coordination` measured: perplexities on test text (lower is better), and their",
        "geometric mean. All experts come from one base model of 6.8M parameters; each read as many tokens.",
        "",
        f"- training tokens of each expert: {tokens:,}",
        f"- test windows of each domain: {windows} of 256 tokens",
        *(f"- training and registering five experts, {kind}: {value:.0f} s" for kind, value in seconds.items()),
        f"- torch {torch.__version__}, {torch.get_num_threads()} threads",
        "",
        f"| experts | composition | {' | '.join(DOMAINS)} | mean |",
        f"|---|---|{'---|' * (len(DOMAINS) + 1)}",
    ]
    for kind, name, of in rows:
        mean = math.exp(sum(math.log(of[domain]) for domain in DOMAINS) / len(DOMAINS))
        lines.append(f"| {kind} | {name} | {' | '.join(f'{of[domain]:.2f}' for domain in DOMAINS)} | {mean:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is not there, compose, score, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).parents[2] / "shared", help="default: %(default)s"
    )
    parser.add_argument("--tokens", type=int, default=204_800, help="of each expert; default: %(default)s")
    parser.add_argument("--windows", type=int, default=48, help="of each domain; default: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("build/coordination"), help="default: %(default)s")
    given = parser.parse_args()
    rows, seconds = [], {}
    for kind in KINDS:
        home = given.work / f"{kind}-{given.tokens}"
        seconds[kind] = trained(home, kind, given.shared, given.tokens)
        rows += [(kind, name, of) for name, of in scored(home, kind, given.shared, given.work, given.windows)]
    PAGE.write_text(page(rows, given.tokens, given.windows, seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
