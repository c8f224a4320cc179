"""SIMoE: overlap of the masks by β, sparsity against what was asked for, a dense model, and ablations."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from statistics import fmean
from typing import Any

from benchmarks.papers.bench import BASE, NEAR, Bench, Figures, fresh, kept
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, Recipe, Registry, SimoeTraining

EXPERTS = 4
SHARE = 0.25
"""Tokens of a training, in those of an expert."""
SPARSITY = 0.75
BETAS = (0.0, 5e-6, 5e-5, 5e-4)
SPARSITIES = (0.0, SPARSITY, 0.9)
"""β and τ of the slides' sensitivity tables."""
BETA = 5e-5
ABLATIONS = {"one mask for all experts": {"experts": 1, "sparsity": SPARSITY, "overlap": 0.0}}
"""Ablation → settings of its training; two more need none."""
NO_PENALTY, NO_ROUTER = "no orthogonal penalty: β 0", "no router: equal weights"


def _label(beta: float, tau: float) -> str:
    return f"SIMoE, β {beta:g}, τ {tau:g}"


WHOLE = _label(BETA, SPARSITY)
"""The row that an ablation leaves an ingredient out of."""


def simoe(bench: Bench) -> Figures:
    """Train a SIMoE for each β and each τ on text of all domains, and one dense model on as much, and score them.

    All train on a quarter of the tokens of an expert.
    """
    training = bench.mixed_training(SHARE)
    text = [bench.text(domain, "train") for domain in NEAR]
    runs: dict[str, dict[str, Any]] = {
        _label(beta, tau): {"experts": EXPERTS, "sparsity": tau, "overlap": beta}
        for beta, tau in [(beta, SPARSITY) for beta in BETAS] + [(BETA, tau) for tau in SPARSITIES if tau != SPARSITY]
    }
    masks, folders, layers = {}, {}, {}
    with Registry(bench.work / f"simoe-{bench.tokens}") as registry:
        if BASE not in {version.name for version in registry.versions()}:
            registry.add_base(BASE, bench.shared / "experts" / BASE)
        folders["dense model"] = fresh(bench, "dense")
        registry.train_expert("dense", BASE, text, ExpertTraining(**training), out=folders["dense model"])
        for number, (label, own) in enumerate((runs | ABLATIONS).items()):
            name, settings = f"s{number}", SimoeTraining(**own, **training)
            final = registry.train_simoe(name, BASE, text, settings).document["masks"]
            masks[label] = _masks(final, settings)
            experts = [f"{name}-{one + 1}" for one in range(settings.experts)]
            folders[label] = fresh(bench, f"simoe-{number}")
            registry.compose(experts, folders[label], Recipe(to="simoe"))
            if label == WHOLE:
                layers = {layer: fmean(of_experts) for layer, of_experts in final["of_layers"].items()}
                folders[NO_ROUTER] = fresh(bench, "simoe-no-router")
                registry.compose(experts, folders[NO_ROUTER], Recipe(to="dense", trunk="mean"))
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR, general=False), bench.settings)
    of = {row.name: row for row in found}
    rows = {name: of[folder.name] for name, folder in folders.items()}
    ablated = {WHOLE: rows[WHOLE], NO_PENALTY: rows[_label(0, SPARSITY)]}
    ablated |= {name: rows[name] for name in (*ABLATIONS, NO_ROUTER)}
    return {
        **kept({name: rows[name] for name in ("dense model", *runs)}),
        "masks": {name: masks[name] for name in runs},
        "layers": layers,
        "ablations": {
            "rows": {name: row.perplexity for name, row in ablated.items()},
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
    yield "SIMoEs of four experts and one dense model, each trained on a quarter of an expert's tokens, of all"
    yield "domains alike. *Sparsity* and *overlap* are those of the final masks; *closed* gates were open when the"
    yield "training ended and had to be closed for the sparsity. Overlap is the mean cosine of two masks; what the"
    yield "slides' own percentages of overlap measure, they do not say."
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
    whole = next(iter(ablations["rows"]))
    yield from _closed(found["simoe"].get("layers", {}), whole)
    yield ""
    yield f"Ablations: `{whole}` with one ingredient left out at a time. β 0 is the slides'"
    yield "ablation (b). Their (a) δ in MLPs alone, (c) real masks without a constraint on sparsity, and (d) α for each"
    yield "token are not here: `reg train-simoe` has no options for them. Two are ours: one mask for all, which has"
    yield "neither a router nor an overlap; and no router, so that the four experts of the same training have equal"
    yield "weights: the mean of the four, a dense model."
    yield ""
    yield from table(ablations["rows"])


def _closed(layers: Mapping[str, float], label: str) -> Iterator[str]:
    """Yield the lines of a table of a SIMoE's share of closed gates, by kind of module and layer."""
    kinds: dict[str, list[str]] = {}
    for name, share in layers.items():  # model.layers.0.mlp.up_proj.weight
        kinds.setdefault(name.removesuffix(".weight").split(".", 3)[3], []).append(f"{share:.2f}")
    if kinds:
        numbers = range(max(map(len, kinds.values())))
        yield ""
        yield f"Share of closed gates of `{label}` by layer, the mean of its experts:"
        yield ""
        yield f"| module | {' | '.join(map(str, numbers))} |"
        yield f"| --- | {'---: | ' * len(numbers)}".rstrip()
    for kind, shares in kinds.items():
        yield f"| {kind} | {' | '.join(shares)} |"


PARTS = {"simoe": simoe}
