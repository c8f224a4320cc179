"""FlexOlmo's Table 1: free, frozen and coordinated experts, and mixtures of all weights; and its Figures 3 and 4."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.bench import (
    BASE,
    DUME,
    FREE,
    GENERAL,
    NEAR,
    PUBLIC,
    WEIGHT_ONE,
    Bench,
    Figures,
    fresh,
    kept,
    register_base,
    register_shared,
)
from benchmarks.papers.mergeme import MERGING
from benchmarks.papers.tables import Found, Side, difference, table
from registry import ExpertTraining, MixtureTraining, Recipe, Registry, TrainSettings
from registry.hosts.remote_code import REMOTE_CODE

KINDS: dict[str, dict[str, Any]] = {
    "frozen": {"trunk": "frozen"},
    "coordinated": {"trunk": "frozen", "coordinate": True},
}
"""Kind of expert → how it is trained; free ones are those of SHARED."""

GATED: dict[str, Any] = {"trunk": "base", "top_k": 4, "gating": "softmax-topk", "temperature": 1.0, "host": REMOTE_CODE}
"""FlexOlmo's mixture (§3.2, §4.4): four experts a token, weighed by the softmax over all."""
ANCHORED: dict[str, Any] = {"router": "anchored", **GATED}
EMBEDDED: dict[str, Any] = {"router": "domain-embedding", **GATED}
RANDOM: dict[str, Any] = {"router": "random", **GATED}

CLOSED: dict[str, tuple[str | None, Recipe]] = {
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
BIAS = BIASES[1]

COMPOSITIONS: dict[str, dict[str, tuple[str | None, Recipe]]] = {
    FREE: {
        "soup: average of all weights": (None, Recipe(to="dense", trunk="mean")),
        "BTM: all whole models": (None, Recipe(to="ensemble")),
        "BTM: the best 2 whole models": (None, Recipe(to="ensemble", top_k=2)),
        "DUME": (None, DUME),
        "DUME, weight 1": (None, WEIGHT_ONE),
        "regmean, ridge": (None, Recipe(router="ridge")),
        "regmean, context (the default)": (None, Recipe()),
        "regmean, context, with the public expert": (PUBLIC, Recipe()),
    },
    "frozen": CLOSED,
    "coordinated": CLOSED
    | {
        "rows as trained, with the public expert": (BASE, Recipe(**ANCHORED)),
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
        names = register_base(registry, bench)
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
    compositions: Mapping[str, tuple[str | None, Recipe]],
) -> Figures:
    """Return the figures of the experts of a kind, and of their compositions."""
    folders = []
    with Registry(bench.home(kind)) as registry:
        if kind == FREE:
            register_shared(registry, bench)
        for number, (other, recipe) in enumerate(compositions.values()):
            folders.append(bench.work / "folders" / f"{kind}-{len(domains)}-{number}")
            shutil.rmtree(folders[-1], ignore_errors=True)
            registry.compose([*domains, other] if other else list(domains), folders[-1], recipe)
        found = registry.evaluate(folders, bench.tests(domains), bench.settings, baselines=True)
    of = {row.name: row for row in found}
    rows = {name: of[folder.name] for name, folder in zip(compositions, folders, strict=True)}
    for folder in folders:
        shutil.rmtree(folder)
    rows |= {f"expert {domain}": of[f"expert {domain}"] for domain in domains}
    return kept(rows | {"base model": of[f"base {BASE}@1"]})


def _trained(kind: str) -> Callable[[Bench], Figures]:
    return lambda bench: train(bench, kind, NEAR)


def _near(kind: str) -> Callable[[Bench], Figures]:
    return lambda bench: scored(bench, kind, NEAR, COMPOSITIONS[kind])


UPCYCLED = Recipe(trunk="mean", router="random", top_k=2, temperature=1.0)
"""Recipe of mixtures whose weights all train, of free experts or of copies of the base model."""
MIXTURES: dict[str, tuple[Recipe, tuple[str, ...]]] = {
    "BTX, trained on public text": (UPCYCLED, (GENERAL,)),
    **{f"{name}, trained on all text": (UPCYCLED.replace(**of), (*NEAR, GENERAL)) for name, of in MERGING.items()},
}
"""Mixture of free experts → its recipe, and the domains of the text: FlexOlmo's BTX, and MergeME's Table 1."""


def mixtures(bench: Bench) -> Figures:
    """Train all weights of mixtures of free experts, each on as many tokens as one expert, and score them."""
    folders: dict[str, Path] = {}
    with Registry(bench.home(FREE)) as registry:
        register_shared(registry, bench)
        for number, (name, (recipe, domains)) in enumerate(MIXTURES.items()):
            settings = MixtureTraining("all", **bench.mixed_training())
            called = f"mixture-{number}-{settings.tokens}-{settings.batch_size}-{settings.lr:g}"
            start, folders[name] = (bench.work / "folders" / f"{called}-{which}" for which in ("start", "trained"))
            if folders[name].exists():  # of an earlier run, which was interrupted after it
                continue
            shutil.rmtree(start, ignore_errors=True)
            registry.compose(list(NEAR), start, recipe)
            data = [str(bench.text(domain, "train")) for domain in domains]
            done = registry.train(start, folders[name], data, settings)
            print(f"{name}: {done.before:.4f}, {done.after:.4f}", flush=True)
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR), bench.settings)
    of = {row.name: row for row in found}
    return kept({name: of[folder.name] for name, folder in folders.items()})


def _unrestricted(times: float) -> Callable[[Bench], Figures]:
    """Return what trains the unrestricted mixture on `times` as many tokens as all experts of the domains together.

    On as many tokens such a training costs about twice as much (FlexOlmo §4.3). It has the experts' rate and batch.
    """

    def run(bench: Bench) -> Figures:
        start, trained = (bench.work / "folders" / f"{which}-{times}" for which in ("upcycled", "unrestricted"))
        with Registry(bench.work / "upcycled") as registry:
            names = register_base(registry, bench)
            for domain in NEAR:
                if (copy := f"up-{domain}") not in names:
                    registry.add_expert(copy, bench.shared / "experts" / BASE, data=[bench.text(domain, "train")])
            for folder in (start, trained):
                shutil.rmtree(folder, ignore_errors=True)
            registry.compose([f"up-{domain}" for domain in NEAR], start, UPCYCLED)
            settings = MixtureTraining("all", **bench.training(times * len(NEAR)))
            data = [str(bench.text(domain, "train")) for domain in (*NEAR, GENERAL)]
            done = registry.train(start, trained, data, settings)
            print(f"unrestricted, {times}: {done.before:.4f}, {done.after:.4f}", flush=True)
            (row,) = registry.evaluate([trained], bench.tests(NEAR), bench.settings)
        return kept({f"unrestricted mixture, {times:g}× data": row})

    return run


TUNED = {
    "rows, tuned on proxy text": (BASE, Recipe(**ANCHORED)),
    "rows with a bias, tuned on proxy text": (BASE, Recipe(**ANCHORED, bias=dict.fromkeys(NEAR, BIAS))),
    "ridge, tuned on proxy text": (PUBLIC, Recipe(trunk="base", router="ridge")),
}
"""Row → the public expert and the recipe of the coordinated composition whose routers are tuned."""


PROXIES = 200
"""Documents of public text that are chosen for each expert."""


def tuned(bench: Bench) -> Figures:
    """Tune the routers of coordinated compositions on public text near each expert's (FlexOlmo §3.3.3), and score them.

    Documents are chosen by statistics (`reg proxy`), where the paper trains a classifier.
    """
    public, proxies = bench.text(GENERAL, "train"), bench.work / "proxies"
    shutil.rmtree(proxies, ignore_errors=True)
    folders: dict[str, Path] = {}
    with Registry(bench.home("coordinated")) as registry:
        chosen = registry.proxy(list(NEAR), [public], proxies, documents=PROXIES)
        data = [*(str(one.path) for one in chosen), str(public)]
        for number, (name, (anchor, recipe)) in enumerate(TUNED.items()):
            start, folders[name] = (bench.work / "folders" / f"{which}-{number}" for which in ("rows", "tuned"))
            for folder in (start, folders[name]):
                shutil.rmtree(folder, ignore_errors=True)
            registry.compose([*NEAR, anchor], start, recipe)
            done = registry.train_router(start, folders[name], data, TrainSettings(steps=bench.steps))
            print(f"{name}: {done.before:.4f}, {done.after:.4f}", flush=True)
        found = registry.evaluate(list(folders.values()), bench.tests(NEAR), bench.settings)
    of = {row.name: row for row in found}
    return kept({name: of[folder.name] for name, folder in folders.items()})


WHOLE = "all members"


def without(domain: str) -> str:
    """Return the name of the row without the member of a domain."""
    return f"without {domain}"


def active(count: int) -> str:
    """Return the name of the row in which so many experts a token are active."""
    return f"active: {count}"


def opt_out(bench: Bench) -> Figures:
    """Leave each domain's member out in turn (FlexOlmo, Fig. 4: of news), and let 1 to all be active (Fig. 3)."""
    folders = {WHOLE: fresh(bench, "whole")} | {without(one): fresh(bench, f"without-{one}") for one in NEAR}
    tests = bench.tests(NEAR)
    with Registry(bench.home("coordinated")) as registry:
        for left_out, folder in zip(("", *NEAR), folders.values(), strict=True):
            members = [domain for domain in NEAR if domain != left_out]
            registry.compose([*members, BASE], folder, Recipe(**ANCHORED, bias=dict.fromkeys(members, BIAS)))
        first, *curve = registry.evaluate([folders[WHOLE]], tests, bench.settings, active_experts="all")
        others = registry.evaluate(list(folders.values())[1:], tests, bench.settings)
    numbered = {active(count): row for count, row in enumerate(curve, 1)}
    return kept(dict(zip(folders, (first, *others), strict=True)) | numbered)


def section(found: Found) -> Iterator[str]:
    """Yield the lines of Figures 3 and 4."""
    if "opt-out" not in found:
        return
    yield "FlexOlmo without tuning, rows and a bias. By how many percent the perplexity of a domain, and the mean of"
    yield "the other domains and public text, rises if the domain's member is left out (Fig. 4), with 95 % intervals:"
    yield ""
    yield "| left out | its own domain | all others |"
    yield "| --- | ---: | ---: |"
    for domain in NEAR:
        sides = Side("", "opt-out", without(domain)), Side("", "opt-out", WHOLE)
        others = [other for other in (*NEAR, GENERAL) if other != domain]
        yield f"| {domain} | {difference(found, *sides, [domain])} | {difference(found, *sides, others)} |"
    yield ""
    yield "Perplexities by the number of active experts, of the five and the public one (Fig. 3):"
    yield ""
    yield from table({name: row for name, row in found["opt-out"]["rows"].items() if name.startswith("active")})


PARTS: dict[str, Callable[[Bench], Figures]] = {
    **{f"train-{kind}": _trained(kind) for kind in KINDS},
    **{f"near-{kind}": _near(kind) for kind in KINDS},
    "opt-out": opt_out,
    "tuned": tuned,
}
"""Name of a part → what runs it, in order."""

SHARED: dict[str, Callable[[Bench], Figures]] = {"near-free": _near(FREE), "mixtures": mixtures}
"""Those of experts of SHARED."""

UNRESTRICTED: dict[str, Callable[[Bench], Figures]] = {
    "unrestricted-half": _unrestricted(0.5),
    "unrestricted-1": _unrestricted(1),
}
"""Parts with a registry of their own."""
