"""SIMoE: overlap of the masks by its weight β, sparsity against what was asked for, a dense model, and ablations."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from benchmarks.papers.bench import BASE, NEAR, Bench, Figures, fresh
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, Recipe, Registry, SimoeTraining

EXPERTS = 4
SPARSITY = 0.75
BETAS = (0.0, 0.1, 1.0)
SPARSITIES = (0.5, SPARSITY, 0.9)
BETA = 0.1
ABLATIONS = {
    "no sparsity constraint: τ 0": {"experts": EXPERTS, "sparsity": 0.0, "overlap": BETA},
    "one mask for all experts": {"experts": 1, "sparsity": SPARSITY, "overlap": 0.0},
}
"""Ablation → settings of its training; two more need none."""
NO_PENALTY, NO_ROUTER = "no penalty on overlap: β 0", "no router: equal weights"


def _label(beta: float, tau: float) -> str:
    return f"SIMoE, β {beta:g}, τ {tau:g}"


WHOLE = _label(BETA, SPARSITY)
"""The row that an ablation leaves an ingredient out of."""


def simoe(bench: Bench) -> Figures:
    """Train a SIMoE for each β and each τ on text of all domains, and one dense model on as much, and score them.

    All train on twice as many tokens as an expert.
    """
    training = bench.mixed_training(2)
    text = [bench.text(domain, "train") for domain in NEAR]
    runs: dict[str, dict[str, Any]] = {
        _label(beta, tau): {"experts": EXPERTS, "sparsity": tau, "overlap": beta}
        for beta, tau in [(beta, SPARSITY) for beta in BETAS] + [(BETA, tau) for tau in SPARSITIES if tau != SPARSITY]
    }
    masks, folders = {}, {}
    with Registry(bench.work / f"simoe-{bench.tokens}") as registry:
        if BASE not in {version.name for version in registry.versions()}:
            registry.add_base(BASE, bench.shared / "experts" / BASE)
        folders["dense model"] = fresh(bench, "dense")
        registry.train_expert("dense", BASE, text, ExpertTraining(**training), out=folders["dense model"])
        for number, (label, own) in enumerate((runs | ABLATIONS).items()):
            name, settings = f"s{number}", SimoeTraining(**own, **training)
            masks[label] = _masks(registry.train_simoe(name, BASE, text, settings).document["masks"], settings)
            experts = [f"{name}-{one + 1}" for one in range(settings.experts)]
            folders[label] = fresh(bench, f"simoe-{number}")
            registry.compose(experts, folders[label], Recipe(to="simoe"))
            if label == WHOLE:
                folders[NO_ROUTER] = fresh(bench, "simoe-no-router")
                registry.compose(experts, folders[NO_ROUTER], Recipe(to="dense", trunk="mean"))
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR, general=False), bench.settings)
    of = {row.name: row.perplexity for row in found}
    rows = {name: of[folder.name] for name, folder in folders.items()}
    kept = {WHOLE: rows[WHOLE], NO_PENALTY: rows[_label(0, SPARSITY)]}
    return {
        "rows": {name: rows[name] for name in ("dense model", *runs)},
        "masks": {name: masks[name] for name in runs},
        "ablations": {
            "rows": kept | {name: rows[name] for name in (*ABLATIONS, NO_ROUTER)},
            "masks": {name: masks[name] for name in ABLATIONS},
        },
    }


def _masks(final: Figures, settings: SimoeTraining) -> Figures:
    """Return the figures of the final masks; one mask alone has no overlap."""
    pairs = [final["overlap"][i][j] for i, j in combinations(range(settings.experts), 2)]
    return {
        "beta": settings.beta,
        "tau": settings.sparsity,
        "sparsity": final["sparsity"],
        "overlap": sum(pairs) / len(pairs) if pairs else None,
        "closed": final["closed"],
    }


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on SIMoE."""
    if "simoe" not in found:
        return
    yield "SIMoEs of four experts and one dense model, each trained on twice as many tokens as an expert, of all"
    yield "domains alike. *Sparsity* and *overlap* are those of the final masks; *closed* gates were open when the"
    yield "training ended and had to be closed for the sparsity."
    yield ""
    yield from table(found["simoe"]["rows"])
    yield ""
    yield "| masks | sparsity | overlap | closed |"
    yield "| --- | ---: | ---: | ---: |"
    ablations = found["simoe"].get("ablations", {"rows": {}, "masks": {}})
    for name, one in (found["simoe"]["masks"] | ablations["masks"]).items():
        overlap = "–" if one["overlap"] is None else f"{one['overlap']:.3f}"
        yield f"| {name} | {one['sparsity']:.3f} | {overlap} | {one['closed']:,} |"
    if not ablations["rows"]:
        return
    yield ""
    yield f"Ablations: `{WHOLE}` with one ingredient left out at a time. Which ones are left out is our choice."
    yield "One mask for all has neither a router nor an overlap. Without a router the four experts of the same training"
    yield "have equal weights: the mean of the four, a dense model."
    yield ""
    yield from table(ablations["rows"])


PARTS = {"simoe": simoe}
