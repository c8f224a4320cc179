"""MergeME's Table 3: without any training, merged against separate attention, and how whole sequences are routed."""

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bench import NEAR, Bench, Figures, fresh, register_shared
from benchmarks.papers.tables import Found, score_table
from registry import Recipe, Registry

MERGING: dict[str, dict[str, Any]] = {
    "mean (BTX)": {"trunk": "mean"},
    "TIES": {"trunk": "ties", "combine": "sum", "trunk_options": {"scale": 1 / 3}},
    "DARE": {"trunk": "dare", "combine": "sum", "trunk_options": {"scale": 1 / 3}},
}
"""How attention is merged → the fields of a recipe; λ is 1/3 (MergeME §3.1.2)."""

SHARED_OUT: dict[str, dict[str, Any]] = {
    f"{name}, λ 1/{len(NEAR)}": {**MERGING[name], "trunk_options": {"scale": 1 / len(NEAR)}}
    for name in ("TIES", "DARE")
}
"""The same with λ = 1/E, the sum of all task vectors as long as their mean."""

ROUTINGS = ("prompt-perplexity", "task-vector")

RANDOM: dict[str, Any] = {"router": "random", "top_k": 2, "temperature": 1.0, "normalize": True}
RIDGE: dict[str, Any] = {"router": "ridge", "top_k": 1, "normalize": True}


def rows() -> dict[str, Recipe | Recipe]:
    """Return name → recipe of every row."""
    found: dict[str, Recipe | Recipe] = {}
    for name, fields in MERGING.items():
        found[f"{name}, random token router"] = Recipe(**fields, **RANDOM)
        found[f"{name}, ridge token router"] = Recipe(**fields, **RIDGE)
        for routing in ROUTINGS:
            found[f"{name}, {routing}"] = Recipe(to="ensemble", **fields, routing=routing, top_k=1)
    for name, fields in SHARED_OUT.items():
        found[f"{name}, {ROUTINGS[0]}"] = Recipe(to="ensemble", **fields, routing=ROUTINGS[0], top_k=1)
    for routing in ROUTINGS:
        found[f"separate, {routing}"] = Recipe(to="ensemble", routing=routing, top_k=1)
    return found


def homogeneous(bench: Bench) -> Figures:
    """Compose the experts of SHARED in every way, and score them on the text of their domains."""
    folders = {}
    with Registry(bench.work / "shared-experts") as registry:
        register_shared(registry, bench)
        for number, (name, recipe) in enumerate(rows().items()):
            folders[name] = fresh(bench, f"mergeme-{number}")
            registry.compose(list(NEAR), folders[name], recipe)
        found = registry.evaluate(
            list(folders.values()), bench.tests(NEAR, general=False), bench.settings, baselines=True
        )
    of = {row.name: {**row.score, "average": row.average} for row in found}
    scores = {name: of.pop(folder.name) for name, folder in folders.items()}
    return {"scores": of | scores}


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on merged and separate attention."""
    if "mergeme" not in found:
        return
    yield "The same experts and scores. *Merged* attention is one trunk for all, made in the way that the row names;"
    yield "with *separate* attention every expert is a whole model. Token routers choose by token and layer; the others"
    yield "choose one expert for a text by its first 32 tokens, before which all experts count alike."
    yield ""
    yield from score_table(found["mergeme"]["scores"])


PARTS = {"mergeme": homogeneous}
