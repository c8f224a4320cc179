"""SIMoE: overlap of the masks by its weight β, sparsity against what was asked for, and against dense fine-tuning."""

from collections.abc import Iterator

from benchmarks.papers.bench import BASE, NEAR, Bench, Figures, fresh
from benchmarks.papers.tables import Found, table
from registry import ExpertTraining, Registry, SimoeRecipe, SimoeTraining

EXPERTS = 4
SPARSITY = 0.75
BETAS = (0.0, 0.1, 1.0)
SPARSITIES = (0.5, SPARSITY, 0.9)


def simoe(bench: Bench) -> Figures:
    """Train a SIMoE for each β and each τ on text of all domains, and one dense model on as much, and score them.

    All train on twice as many tokens as an expert.
    """
    training = bench.mixed_training(2)
    text = [bench.text(domain, "train") for domain in NEAR]
    runs = [(beta, SPARSITY) for beta in BETAS] + [(0.1, tau) for tau in SPARSITIES if tau != SPARSITY]
    masks, folders = {}, {}
    with Registry(bench.work / f"simoe-{bench.tokens}") as registry:
        if BASE not in {version.name for version in registry.versions()}:
            registry.add_base(BASE, bench.shared / "experts" / BASE)
        folders["dense model"] = fresh(bench, "dense")
        registry.train_expert("dense", BASE, text, ExpertTraining(**training), out=folders["dense model"])
        for number, (beta, tau) in enumerate(runs):
            name, label = f"s{number}", f"SIMoE, β {beta:g}, τ {tau:g}"
            settings = SimoeTraining(experts=EXPERTS, sparsity=tau, overlap=beta, **training)
            done = registry.train_simoe(name, BASE, text, settings)
            final = done.document["masks"]
            pairs = [final["overlap"][i][j] for i in range(EXPERTS) for j in range(i)]
            masks[label] = {
                "beta": beta,
                "tau": tau,
                "sparsity": final["sparsity"],
                "overlap": sum(pairs) / len(pairs),
                "closed": final["closed"],
            }
            folders[label] = fresh(bench, f"simoe-{number}")
            registry.compose([f"{name}-{one + 1}" for one in range(EXPERTS)], folders[label], SimoeRecipe())
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR, general=False), bench.settings)
    of = {row.name: row.perplexity for row in found}
    return {"rows": {name: of[folder.name] for name, folder in folders.items()}, "masks": masks}


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
    for name, one in found["simoe"]["masks"].items():
        yield f"| {name} | {one['sparsity']:.3f} | {one['overlap']:.3f} | {one['closed']:,} |"


PARTS = {"simoe": simoe}
