"""FlexOlmo's Table 1: free, frozen and coordinated experts, and mixtures of all weights."""

import gzip
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.bench import BASE, FAR, GENERAL, NEAR, PUBLIC, Bench, Figures, Rows
from registry import ExpertTraining, MixtureTraining, Recipe, Registry, TrainSettings

KINDS: dict[str, dict[str, Any]] = {
    "free": {"trunk": "free"},
    "frozen": {"trunk": "frozen"},
    "coordinated": {"trunk": "frozen", "coordinate": True},
}
"""Kind of expert → how it is trained."""

ANCHORED: dict[str, Any] = {"trunk": "base", "router": "anchored"}
EMBEDDED: dict[str, Any] = {"trunk": "base", "router": "domain-embedding", "temperature": 1.0, "top_k": 2}
RANDOM: dict[str, Any] = {"trunk": "base", "router": "random", "temperature": 1.0, "top_k": 2}

CLOSED: dict[str, tuple[str | None, Recipe | Recipe]] = {
    "ridge": (None, Recipe(trunk="base", router="ridge")),
    "ridge, with the public expert": (PUBLIC, Recipe(trunk="base", router="ridge")),
    "context": (None, Recipe(trunk="base")),
    "context, with the public expert": (PUBLIC, Recipe(trunk="base")),
    "random rows, with the public expert": (PUBLIC, Recipe(**RANDOM)),
    "domain embeddings, with the public expert": (PUBLIC, Recipe(**EMBEDDED)),
    "BTM: all whole models": (None, Recipe(to="ensemble")),
    "soup: average of all weights": (None, Recipe(to="dense", trunk="mean")),
}
"""Composition of experts that share a trunk → who else takes part, and its recipe."""

BIASES = (-0.25, -0.5, -1.0, -2.0)
"""Logits by which every expert stands back from the public one."""

COMPOSITIONS: dict[str, dict[str, tuple[str | None, Recipe | Recipe]]] = {
    "free": {
        "soup: average of all weights": (None, Recipe(to="dense", trunk="mean")),
        "BTM: all whole models": (None, Recipe(to="ensemble")),
        "BTM: the best 2 whole models": (None, Recipe(to="ensemble", top_k=2)),
        "DUME: trunk mean, ridge": (None, Recipe(trunk="mean", router="ridge", top_k=1, normalize=True)),
        "regmean, ridge": (None, Recipe(router="ridge")),
        "regmean, context (the default)": (None, Recipe()),
        "regmean, context, with the public expert": (PUBLIC, Recipe()),
    },
    "frozen": CLOSED,
    "coordinated": CLOSED
    | {
        "rows as trained, with the public expert": (BASE, Recipe(**ANCHORED)),
        "rows as trained, top 4": (BASE, Recipe(**ANCHORED, top_k=4)),
        "rows as trained, without it": (None, Recipe(**ANCHORED)),
        **{
            f"rows as trained, bias {bias:g}": (BASE, Recipe(**ANCHORED, bias=dict.fromkeys(NEAR, bias)))
            for bias in BIASES
        },
    },
}
"""Kind → composition → who takes part beside the experts of the domains, and its recipe."""


def train(bench: Bench, kind: str, domains: Sequence[str]) -> Figures:
    """Train and register the experts of a kind that are not there."""
    losses = {}
    with Registry(bench.home(kind)) as registry:
        names = {version.name for version in registry.versions()}
        if BASE not in names:
            registry.add_base(BASE, bench.shared / "experts" / BASE)
        if PUBLIC not in names:
            text = [bench.text(GENERAL, "train")]
            registry.add_expert(PUBLIC, bench.shared / "experts" / BASE, data=text, keep_calibration=True)
        for domain in domains:
            if domain in names:
                continue
            settings = ExpertTraining(**bench.training(), **KINDS[kind])
            public = [bench.text(GENERAL, "train")] if settings.coordinate else []
            text = [bench.text(domain, "train")]
            done = registry.train_expert(domain, BASE, text, settings, public_data=public, keep_calibration=True)
            losses[domain] = [done.losses.before, done.losses.after]
            print(f"{kind} {domain}: loss {done.losses.before:.3f}, {done.losses.after:.3f}", flush=True)
    return {"losses": losses}


def scored(
    bench: Bench,
    kind: str,
    domains: Sequence[str],
    compositions: Mapping[str, tuple[str | None, Recipe | Recipe]],
) -> Rows:
    """Return the rows of the experts of a kind, and of their compositions."""
    folders = []
    with Registry(bench.home(kind)) as registry:
        for number, (other, recipe) in enumerate(compositions.values()):
            folders.append(bench.work / "folders" / f"{kind}-{len(domains)}-{number}")
            shutil.rmtree(folders[-1], ignore_errors=True)
            registry.compose([*domains, other] if other else list(domains), folders[-1], recipe)
        found = registry.evaluate(folders, bench.tests(domains), bench.settings, baselines=True)
    of = {row.name: row.perplexity for row in found}
    rows = {name: of[folder.name] for name, folder in zip(compositions, folders, strict=True)}
    for folder in folders:
        shutil.rmtree(folder)
    rows |= {f"expert {domain}": of[f"expert {domain}"] for domain in domains}
    rows["base model"] = of[f"base {BASE}@1"]
    return rows


def _trained(kind: str) -> Callable[[Bench], Figures]:
    return lambda bench: train(bench, kind, NEAR)


def _near(kind: str) -> Callable[[Bench], Figures]:
    return lambda bench: {"rows": scored(bench, kind, NEAR, COMPOSITIONS[kind])}


def _far(kind: str) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        losses = train(bench, kind, (*NEAR, *FAR))
        return {**losses, "rows": scored(bench, kind, (*NEAR, *FAR), COMPOSITIONS[kind])}

    return run


MIXTURES: dict[str, tuple[Recipe, tuple[str, ...]]] = {
    "BTX, trained on public text": (Recipe(trunk="mean", router="random", top_k=2, temperature=1.0), (GENERAL,)),
    "BTX, trained on all text": (Recipe(trunk="mean", router="random", top_k=2, temperature=1.0), (*NEAR, GENERAL)),
    "DUME+, all weights, trained on all text": (Recipe(trunk="mean", router="ridge", top_k=2), (*NEAR, GENERAL)),
}
"""Mixture of free experts whose weights all train → its recipe, and the domains of the text."""


def mixtures(bench: Bench) -> Figures:
    """Train all weights of mixtures of free experts, each on as many tokens as one expert, and score them."""
    folders: dict[str, Path] = {}
    with Registry(bench.home("free")) as registry:
        for number, (name, (recipe, domains)) in enumerate(MIXTURES.items()):
            start, folders[name] = (bench.work / "folders" / f"{which}-{number}" for which in ("start", "trained"))
            for folder in (start, folders[name]):
                shutil.rmtree(folder, ignore_errors=True)
            registry.compose(list(NEAR), start, recipe)
            settings = MixtureTraining("all", **bench.mixed_training())
            data = [str(bench.text(domain, "train")) for domain in domains]
            done = registry.train(start, folders[name], data, settings)
            print(f"{name}: {done.before:.4f}, {done.after:.4f}", flush=True)
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR), bench.settings)
    of = {row.name: row.perplexity for row in found}
    return {"rows": {name: of[folder.name] for name, folder in folders.items()}}


UPCYCLED = Recipe(trunk="mean", router="random", top_k=2, temperature=1.0)
"""Recipe of a mixture of copies of the base model, each registered with the text of a domain."""


def _unrestricted(times: int, what: str = "all") -> Callable[[Bench], Figures]:
    """Return what trains the unrestricted mixture on `times` as many tokens as all experts of the domains together.

    Args:
        times: see above.
        what: `all` weights, or the MLPs and gates alone (`mlps`): the trunk stays, as FlexOlmo's does.
    """

    def run(bench: Bench) -> Figures:
        start, trained = (bench.work / "folders" / f"{which}-{what}-{times}" for which in ("upcycled", "unrestricted"))
        with Registry(bench.work / "upcycled") as registry:
            names = {version.name for version in registry.versions()}
            if BASE not in names:
                registry.add_base(BASE, bench.shared / "experts" / BASE)
            for domain in NEAR:
                if (copy := f"up-{domain}") not in names:
                    registry.add_expert(copy, bench.shared / "experts" / BASE, data=[bench.text(domain, "train")])
            for folder in (start, trained):
                shutil.rmtree(folder, ignore_errors=True)
            registry.compose([f"up-{domain}" for domain in NEAR], start, UPCYCLED)
            settings = MixtureTraining(what, **bench.mixed_training(times * len(NEAR)))
            data = [str(bench.text(domain, "train")) for domain in (*NEAR, GENERAL)]
            done = registry.train(start, trained, data, settings)
            print(f"unrestricted, {what}, {times}: {done.before:.4f}, {done.after:.4f}", flush=True)
            (row,) = registry.evaluate([trained], bench.tests(NEAR), bench.settings)
        name = f"unrestricted mixture, {times}×" + ("" if what == "all" else ", its trunk frozen")
        return {"rows": {name: row.perplexity}}

    return run


TUNED = {
    "rows, tuned on proxy text": (BASE, Recipe(**ANCHORED)),
    "rows with a bias, tuned on proxy text": (BASE, Recipe(**ANCHORED, bias=dict.fromkeys(NEAR, -0.5))),
    "ridge, tuned on proxy text": (PUBLIC, Recipe(trunk="base", router="ridge")),
}
"""Row → the public expert and the recipe of the coordinated composition whose routers are tuned."""


RATES = (1.0, 3.0)
"""Highest learning rates of one domain's experts, in those of all experts."""


def rates(bench: Bench) -> Figures:
    """Train one domain's expert of two kinds at other learning rates, and return its held-out losses."""
    domain, losses = NEAR[0], {}
    text = [bench.text(domain, "train")]
    for kind in ("free", "frozen"):
        with Registry(bench.home(kind)) as registry:
            for rate in (times * bench.lr for times in RATES):
                out = bench.work / "folders" / f"{kind}-{rate:g}"
                shutil.rmtree(out, ignore_errors=True)
                settings = ExpertTraining(**bench.training() | {"lr": rate}, **KINDS[kind])
                done = registry.train_expert(domain, BASE, text, settings, out=out)
                losses[f"{kind}, {rate:g}"] = [done.losses.before, done.losses.after]
                print(f"{kind}, {rate:g}: {done.losses.after:.4f}", flush=True)
                shutil.rmtree(out)
    return {"domain": domain, "losses": losses}


POOL, PROXIES = 300, 200
"""Documents of each domain in the text that proxies are chosen from, and documents chosen for each expert."""


def tuned(bench: Bench) -> Figures:
    """Tune the routers of coordinated compositions on public text near each expert's (FlexOlmo §3.3.3), and score them.

    The pool of public text is the general text and some documents of every domain, without labels.
    """
    domain_of, proxies = write_pool(bench), bench.work / "proxies"
    shutil.rmtree(proxies, ignore_errors=True)
    folders: dict[str, Path] = {}
    with Registry(bench.home("coordinated")) as registry:
        own = {}
        for chosen in registry.proxy(list(NEAR), [bench.work / "pool.jsonl"], proxies, documents=PROXIES):
            texts = [json.loads(line)["text"] for line in chosen.path.read_text().splitlines()]
            own[chosen.name] = sum(domain_of[text] == chosen.name for text in texts) / len(texts)
        data = [*(str(proxies / f"{domain}.jsonl") for domain in NEAR), str(bench.text(GENERAL, "train"))]
        for number, (name, (public, recipe)) in enumerate(TUNED.items()):
            start, folders[name] = (bench.work / "folders" / f"{which}-{number}" for which in ("rows", "tuned"))
            for folder in (start, folders[name]):
                shutil.rmtree(folder, ignore_errors=True)
            registry.compose([*NEAR, public], start, recipe)
            done = registry.train_router(start, folders[name], data, TrainSettings(steps=max(bench.steps)))
            print(f"{name}: {done.before:.4f}, {done.after:.4f}", flush=True)
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR), bench.settings)
    of = {row.name: row.perplexity for row in found}
    return {"rows": {name: of[folder.name] for name, folder in folders.items()}, "own": own}


def write_pool(bench: Bench) -> dict[str, str]:
    """Write the pool of public text, and return document → the domain that it comes from."""
    domain_of: dict[str, str] = {}
    for domain in (*NEAR, GENERAL):
        with gzip.open(bench.text(domain, "train"), "rt", encoding="utf-8") as rows:
            texts = [json.loads(row)["text"] for row in rows]
        domain_of |= dict.fromkeys(texts if domain == GENERAL else texts[-POOL:], domain)
    pool = "".join(json.dumps({"text": text}) + "\n" for text in domain_of)
    (bench.work / "pool.jsonl").write_text(pool, encoding="utf-8")
    return domain_of


PARTS: dict[str, Callable[[Bench], Figures]] = {
    **{f"train-{kind}": _trained(kind) for kind in KINDS},
    **{f"near-{kind}": _near(kind) for kind in KINDS},
    **{f"far-{kind}": _far(kind) for kind in KINDS},
    "rates": rates,
    "tuned": tuned,
    "mixtures": mixtures,
}
"""Name of a part → what runs it, in order."""

UNRESTRICTED: dict[str, Callable[[Bench], Figures]] = {
    "unrestricted-1": _unrestricted(1),
    "unrestricted-2": _unrestricted(2),
    "unrestricted-mlps": _unrestricted(1, "mlps"),
}
"""Parts with a registry of their own."""
