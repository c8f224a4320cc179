"""DUME's Table 2, with BTX and DUME+ trained as published."""

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers.bench import NEAR, Bench, Figures, register_shared
from benchmarks.papers.tables import Found, score_table
from registry import Recipe, Registry, TrainSettings

STARTS: dict[str, tuple[str, Recipe]] = {
    "DUME": ("DUME+", Recipe(trunk="mean", router="ridge", normalize=True, refine=1, temperature=1.0)),
    "random routers": ("BTX, routers alone", Recipe(trunk="mean", router="random", normalize=True, temperature=1.0)),
}
"""Composition → its name once its routers are trained, and its recipe."""


def dume(bench: Bench) -> Figures:
    """Compose the experts of SHARED by DUME and with random routers, train these routers, and score everything.

    The paper trains gates alone, with a load-balance loss, and routes to k experts by a softmax of temperature 1 over
    their logits. At k = 1 that softmax is 1 and passes no gradient; `reg train-router` compares two experts there.
    """
    folders: dict[str, Path] = {}

    def is_new(name: str) -> bool:
        folders[name] = bench.work / "folders" / re.sub(r"[^a-z0-9]+", "-", name.lower())
        return not folders[name].exists()  # a folder appears whole

    data = [str(bench.text(domain, "train")) for domain in NEAR]
    with Registry(bench.work / "shared-experts") as registry:
        register_shared(registry, bench)
        for name, (trained, recipe) in STARTS.items():
            for top_k in (1, 2):
                start = f"{name}, top {top_k}"
                if is_new(start):
                    registry.compose(list(NEAR), folders[start], recipe.replace(top_k=top_k))
                for steps in bench.steps:
                    settings = TrainSettings(steps=steps, balance=0.01 if top_k > 1 else 0.0)
                    if is_new(label := f"{trained}, top {top_k}, {steps} steps"):
                        done = registry.train_router(folders[start], folders[label], data, settings)
                        print(f"{label}: {done.before:.4f}, {done.after:.4f}", flush=True)
        tests = bench.tests(NEAR, general=False)
        found = registry.evaluate(list(folders.values()), tests, bench.settings, baselines=True)
    of = {row.name: {**row.score, "average": row.average} for row in found}
    scores = {name: of.pop(path.name) for name, path in folders.items()}
    return {"scores": of | scores}


def section(found: Found) -> Iterator[str]:
    """Yield the lines of DUME's Table 2."""
    if "dume" not in found:
        return
    rows = found["dume"]["scores"]
    yield "The experts of `../shared/experts`, all of whose weights were trained on 819,200 tokens. Scores are"
    yield "normalised: 100 · perplexity of the domain's own expert / perplexity of the model; higher is better."
    yield "That paper's DUME+ and BTX train gates alone, from the closed form and from random ones. At top 1"
    yield "a softmax over one logit passes no gradient; there `reg train-router` compares two experts."
    yield ""
    yield from score_table(rows)


PARTS = {"dume": dume}
