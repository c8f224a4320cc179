"""DUME's Table 2: closed-form and random routers, both also trained, beside averaged weights and the oracle."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers.bench import DUME, NEAR, WEIGHT_ONE, Bench, Figures, averaged, fresh, kept, register_shared
from benchmarks.papers.tables import Found, score_table
from registry import Recipe, Registry, TrainSettings
from registry.evaluation.results import Row

ROUTED = "DUME"
RANDOM = Recipe(trunk="mean", router="random", normalize=True, temperature=1.0, top_k=1)
STARTS: dict[str, tuple[str | None, Recipe]] = {
    ROUTED: ("DUME+", DUME),
    "DUME, weight 1": (None, WEIGHT_ONE),
    "random routing": (None, RANDOM),
    "random routing, top 2": ("BTX, routers alone, top 2", RANDOM.replace(top_k=2)),
}
"""Composition → its name once its routers are trained, if they are, and its recipe."""


def dume(bench: Bench) -> Figures:
    """Compose the experts of SHARED by DUME and with random routers, train these routers, and score everything.

    BTX routes to two experts, DUME+ to one, and neither has a load-balance loss (DUME §3.1). There BTX trains for 1,000
    steps at 1e-4, DUME+ at 1e-5. BTX fine-tunes the mixture (§4), which weights that paper does not list; here `reg
    train-router` trains gates alone, in whitened coordinates and at its own rate, in far fewer steps.
    """
    data, tests = [str(bench.text(domain, "train")) for domain in NEAR], bench.tests(NEAR, general=False)
    found: dict[str, list[Row]] = {}
    with Registry(bench.work / "shared-experts") as registry:
        register_shared(registry, bench)
        for seed in range(bench.seeds):
            folders = dict[str, Path]()
            for name, (trained, recipe) in STARTS.items():
                folders[name] = fresh(bench, f"dume-{len(folders)}")
                seeded = {"seed": seed} if recipe.router == "random" else {}
                registry.compose(list(NEAR), folders[name], recipe.replace(**seeded))
                if trained:
                    folders[trained] = fresh(bench, f"dume-{len(folders)}")
                    settings = TrainSettings(steps=bench.steps, seed=seed)
                    done = registry.train_router(folders[name], folders[trained], data, settings)
                    print(f"{trained}: {done.before:.4f}, {done.after:.4f}", flush=True)
            one, *others = folders.values()  # every mixture's oracle is the same: the first one's will do
            rows = registry.evaluate([one], tests, bench.settings, baselines=True, oracle=True)
            rows += registry.evaluate(others, tests, bench.settings)
            names = {folder.name: name for name, folder in folders.items()} | {f"{one.name} oracle": "oracle"}
            for row in rows:
                found.setdefault(names.get(row.name, row.name), []).append(row)
    means = {name: averaged(rows) for name, rows in found.items()}
    spreads = {name: row.spread for name, row in means.items() if row.spread}
    return {
        "scores": {name: {**row.score, "average": row.average} for name, row in means.items()},
        "spread": {name: {**spread.score, "average": spread.average} for name, spread in spreads.items()},
        **kept(means),
    }


def section(found: Found) -> Iterator[str]:
    """Yield the lines of DUME's Table 2."""
    if "dume" not in found:
        return
    figures = found["dume"]
    yield "The experts of `../shared/experts`, all of whose weights were trained on 819,200 tokens. Scores are"
    yield "normalised: 100 · perplexity of the domain's own expert / perplexity of the model; higher is better."
    yield "*DUME* weighs one expert a token by the softmax over all (eq. 4); its *weight 1* is ours. The *oracle*"
    yield "sends each domain's tokens to its expert. DUME+ and BTX train gates alone, without a load-balance loss,"
    yield f"in coordinates of our own, for {figures['size']['steps']} steps of 8 windows at a rate of"
    yield f"{TrainSettings().lr:g}, by the gradient over two experts. The paper has 1,000 steps, at 1e-5 (DUME+, one"
    yield "expert) and 1e-4 (BTX, two), and does not say that BTX trains gates alone."
    yield f"Seeds of random routers and of trainings: {figures['size']['seeds']}; ± is their deviation, if any."
    yield ""
    yield from score_table(figures["scores"], figures["spread"])


PARTS = {"dume": dume}
