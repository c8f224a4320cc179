"""MergeME without training: merged against separate attention, which expert gets what, and how alike experts are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize

from benchmarks.papers.bench import BASE, NEAR, PUBLIC, WEIGHT_ONE, Bench, Figures, fresh, kept, register_shared
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
DIAGONALS = "RegMean, diagonals alone"
"""RegMean at α = 0. A Fisher average, of Fisher's diagonal as inputs' times outputs', also has squares of gradients."""

ROUTINGS = ("prompt-perplexity", "task-vector")
SEPARATE = "separate, prompt-perplexity"
RIDGE = {name: f"{name}, ridge token router" for name in MERGING}
"""Rows whose routing is shown."""

Weights = Mapping[str, torch.Tensor]
BLOCKS = {"attention": "self_attn", "MLP": "mlp"}
"""Block of a layer → its name in a Llama's keys."""

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
    alone = Recipe(to="ensemble", trunk="regmean", trunk_options={"alpha": 0.0}, routing="prompt-perplexity", top_k=2)
    found[f"{DIAGONALS}, prompt-perplexity"] = alone
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
    shares = {
        name: {domain: {one: fmean(layers) for one, layers in own.items()} for domain, own in of[name].weights.items()}
        for name in (SEPARATE, *RIDGE.values())
    }
    scores = {name: {**row.score, "average": row.average} for name, row in of.items()}
    return {"scores": scores, "shares": shares, **kept(of)}


def task_vectors(bench: Bench) -> Figures:
    """Compare the task vectors of SHARED's experts, by their weights alone (Fig. 4)."""
    base, *experts = (load_file(bench.shared / "experts" / name / "model.safetensors") for name in (BASE, *NEAR))
    return {"similarity": similarity(base, experts)}


def similarity(base: Weights, experts: Sequence[Weights]) -> dict[str, list[float]]:
    """Return block → layer by layer the cosine similarity of task vectors, the mean over pairs of experts.

    All weights of a layer's attention are one vector, and those of its MLP.
    """
    layers = 1 + max(int(match[1]) for match in map(re.compile(r"model\.layers\.(\d+)\.").match, base) if match)

    def mean_of(prefix: str) -> float:
        keys = [key for key in base if key.startswith(prefix)]
        tasks = [torch.cat([(one[key].double() - base[key].double()).flatten() for key in keys]) for one in experts]
        unit = normalize(torch.stack(tasks), dim=1)  # (E, number of weights)
        return float((unit @ unit.T).triu(1).sum() / comb(len(experts), 2))

    return {
        name: [mean_of(f"model.layers.{layer}.{block}.") for layer in range(layers)] for name, block in BLOCKS.items()
    }


def section(found: Found) -> Iterator[str]:
    """Yield the lines of the section on merged and separate attention."""
    if "mergeme" not in found:
        return
    figures = found["mergeme"]
    yield "The same experts and scores. *Merged* attention is one trunk for all, made in the way that the row names;"
    yield "with *separate* attention every expert is a whole model. Token routers choose by token and layer; the others"
    yield "weigh members for a text by its first 32 tokens, before which all count alike; the paper reads the whole"
    yield "input."
    yield "The base model is a member, and two are chosen; by the ridge router, which is DUME's, one, at weight 1."
    yield f"TIES and DARE keep 80 % and add 1/{len(NEAR)} of the sum of task vectors; 1/{len(NEAR)} is ours: the paper"
    yield f"adds 1/3 of the sum of three. *{DIAGONALS}* weighs a map's inputs by their mean squares: that is the"
    yield "input side of a Fisher average, whose output side needs gradients, which the registry does not keep."
    yield ""
    yield from score_table(figures["scores"])
    yield from _shares(figures["shares"])


def _shares(shares: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    """Yield the table of who gets what, from row → domain → expert → its mean weight."""
    shown = {"perplexity": SEPARATE, "ridge": RIDGE["mean (BTX)"]}
    members = list(next(iter(shares[SEPARATE].values())))
    own = {name: 100 * fmean(of[domain] for domain, of in shares[row].items()) for name, row in RIDGE.items()}
    yield ""
    yield "Mean weights of members on each domain's tokens, in percent, over all layers (the paper's Table 2):"
    yield "*perplexity* with separate attention, *ridge* with the mean. By the ridge router a domain's own expert has,"
    yield f"the mean over domains, {', '.join(f'{value:.1f} % with {name}' for name, value in own.items())}. The"
    yield "paper's Fig. 5 has mixtures trained after merging: there the own expert gains by TIES and DARE."
    yield ""
    yield f"| router | domain | {' | '.join(members)} |"
    yield f"| --- | --- | {'---: | ' * len(members)}".rstrip()
    for name, row in shown.items():
        for domain, of in shares[row].items():
            yield f"| {name} | {domain} | {' | '.join(f'{100 * of[member]:.0f}' for member in members)} |"


def similarity_section(found: Found) -> Iterator[str]:
    """Yield the table of MergeME's Fig. 4."""
    if "task-vectors" not in found:
        return
    blocks = found["task-vectors"]["similarity"]
    yield "Cosine similarity of task vectors of `../shared/experts`, the mean over all pairs of experts. The paper has"
    yield "one pair, math and code, and finds it low in attention as in MLPs: merged attention interferes too."
    yield ""
    yield f"| layer | {' | '.join(blocks)} |"
    yield f"| --- | {'---: | ' * len(blocks)}".rstrip()
    for layer, values in enumerate(zip(*blocks.values(), strict=True)):
        yield f"| {layer} | {' | '.join(f'{value:.3f}' for value in values)} |"


PARTS = {"mergeme": homogeneous, "task-vectors": task_vectors}
