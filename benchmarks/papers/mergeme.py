"""MergeME's Table 3: without any training, merged against separate attention, and how whole sequences are routed."""

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bench import NEAR, PUBLIC, WEIGHT_ONE, Bench, Figures, fresh, kept, register_shared
from benchmarks.papers.tables import Found, score_table
from registry import Recipe, Registry

SUMMED: dict[str, Any] = {"combine": "sum", "trunk_options": {"scale": 1 / len(NEAR)}}
"""λ = 1/E with the sum is ours: 1/3 in App. A, of three task vectors that are not 0."""
MERGING: dict[str, dict[str, Any]] = {
    "mean (BTX)": {"trunk": "mean"},
    "TIES": {"trunk": "ties", **SUMMED},
    "DARE": {"trunk": "dare", **SUMMED},
}
"""How attention is merged → the fields of a recipe."""
TRUNKS = {**MERGING, "RegMean": {"trunk": "regmean"}}
"""The same, with what MergeME leaves open (§7)."""

ROUTINGS = ("prompt-perplexity", "task-vector")

RANDOM: dict[str, Any] = {"router": "random", "top_k": 2, "temperature": 1.0, "normalize": True}


def rows() -> dict[str, Recipe]:
    """Return name → recipe of every row; two members are chosen (App. A), but by the ridge router one."""
    found: dict[str, Recipe] = {}
    for name, fields in TRUNKS.items():
        found[f"{name}, random token router"] = Recipe(**fields, **RANDOM)
        found[f"{name}, ridge token router"] = WEIGHT_ONE.replace(**fields)
        for routing in ROUTINGS:
            found[f"{name}, {routing}"] = Recipe(to="ensemble", **fields, routing=routing, top_k=2)
    for name in ("TIES", "DARE"):
        found[f"{name}, one dense model"] = Recipe(to="dense", **MERGING[name])
    for routing in ROUTINGS:
        found[f"separate, {routing}"] = Recipe(to="ensemble", routing=routing, top_k=2)
    return found


def homogeneous(bench: Bench) -> Figures:
    """Compose the experts of SHARED and the base model (§4.2) in every way, and score them on the experts' domains."""
    folders = {}
    with Registry(bench.work / "shared-experts") as registry:
        register_shared(registry, bench)
        for number, (name, recipe) in enumerate(rows().items()):
            folders[name] = fresh(bench, f"mergeme-{number}")
            registry.compose([*NEAR, PUBLIC], folders[name], recipe)
        found = registry.evaluate(
            list(folders.values()), bench.tests(NEAR, general=False), bench.settings, baselines=True
        )
    names = {folder.name: name for name, folder in folders.items()}
    of = {names.get(row.name, row.name): row for row in found}
    return {"scores": {name: {**row.score, "average": row.average} for name, row in of.items()}, **kept(of)}


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on merged and separate attention."""
    if "mergeme" not in found:
        return
    yield "The same experts and scores. *Merged* attention is one trunk for all, made in the way that the row names;"
    yield "with *separate* attention every expert is a whole model. Token routers choose by token and layer; the others"
    yield "weigh members for a text by its first 32 tokens, before which all count alike; the paper reads the whole"
    yield "input."
    if "nats" in found["mergeme"]:
        yield "The base model is a member, and two are chosen; by the ridge router, which is DUME's, one, at weight 1."
        yield f"TIES and DARE keep 80 % and add 1/{len(NEAR)} of the sum of task vectors; that is ours: the paper adds"
        yield "1/3 of the sum of three."
    yield ""
    yield from score_table(found["mergeme"]["scores"])


PARTS = {"mergeme": homogeneous}
