"""Records what every method and every output writes; run when that is meant to change, and on a new kind of machine.

python -m tests.registry.make_golden_compositions

The bits of sums, products and roots depend on the machine: on its instruction set, and on the library that computes
them. So what follows from them is recorded for each kind of machine, told by the bits of some computations; it is
recorded for the one that this runs on; that of the others stays, but for cases that changed everywhere. This makes a
processor pass for an older one:

ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2_VNNI MKL_ENABLE_INSTRUCTIONS=AVX2 python -m …
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from registry import Recipe, TestSettings, TrainSettings
from tests.conftest import files_of
from tests.registry.golden_experts import (
    BASE,
    BESIDE,
    EXPERTS,
    KINDS,
    MORE_TOKENS,
    ROWED,
    Home,
    golden_home,
    take_statistics,
)
from tests.writable_hub import WritableHub, writable_hub

GOLDEN = Path(__file__).with_name("golden_compositions.json")
DIGEST = "digest"
"""What a composition's digest is called among the files."""

NOTHING: tuple[str, ...] = ()
SUMS = (".safetensors", "composition.json")
STATISTICS = (*SUMS, "README.md", DIGEST)
"""How the names end of what depends on the machine: nothing, where all is copied; what holds sums, or a digest of them;
that and the rest that tells the composition's digest, where statistics were taken here or routers trained."""

Files = dict[str, bytes]
Members = Sequence[str] | Callable[[Home], Sequence[str]]
"""Names, or what registers experts and returns theirs."""


@dataclass(frozen=True)
class Case:
    """Something that is written.

    Attributes:
        write: gives the folder's files, and under `DIGEST` the composition's digest, if it is one.
        varies: how the names end of what depends on the machine.
        recipe: how it is composed.
    """

    write: Callable[[Home, Path], Files]
    varies: tuple[str, ...] = SUMS
    recipe: Recipe | None = None


def composed(recipe: Recipe, members: Members = EXPERTS, varies: tuple[str, ...] | None = None) -> Case:
    """Return the case of some experts composed; unless it is said, only combined members have sums."""

    def write(home: Home, out: Path) -> Files:
        names = members(home) if callable(members) else members
        return made(out, home.registry.compose(names, out, recipe).digest)

    return Case(write, (SUMS if recipe.output.is_combined else NOTHING) if varies is None else varies, recipe)


def made(out: Path, digest: str) -> Files:
    """Return the files of a composition, and its digest."""
    return files_of(out) | {DIGEST: digest.encode()}


def moe(*experts: str, **settings: Any) -> Case:
    """Return the case of a mixture, with ridge routers unless `settings` name others."""
    return composed(Recipe(device="cpu", router="ridge").replace(**settings), experts or EXPERTS)


def dense(*experts: str, **settings: Any) -> Case:
    """Return the case of one dense model."""
    return composed(Recipe(to="dense", **settings), experts or EXPERTS)


def ensemble(**settings: Any) -> Case:
    """Return the case of an ensemble."""
    return composed(Recipe(to="ensemble", **settings))


def of_kind(kind: str, **settings: Any) -> Case:
    """Return the case of two experts of another kind, with ridge routers unless `settings` name others."""
    recipe = Recipe(device="cpu", host=KINDS[kind].host, router="ridge").replace(**settings)
    return composed(recipe, lambda home: home.pair(kind), STATISTICS)


def anchored(experts: Sequence[str] = BESIDE, **settings: Any) -> Case:
    """Return the case of experts that were trained beside the base model, and the base model as the public expert."""
    recipe = Recipe(trunk="base", router="anchored", **settings)
    return composed(recipe, lambda home: (*home.beside(experts), BASE), NOTHING)


def simoe(**settings: Any) -> Case:
    """Return the case of the experts of a SIMoE, as they were trained: all is copied."""
    return composed(Recipe(to="simoe", **settings), Home.sparse)


def several(recipe: Recipe) -> Case:
    """Return the case of members of several architectures, without what sums take part in."""
    case, fitted = composed(recipe, lambda home: ["code", home.wide()]), recipe.to == "hetero"

    def write(home: Home, out: Path) -> Files:
        return {name: data for name, data in case.write(home, out).items() if not (fitted and name.endswith(SUMS))}

    return replace(case, write=write)


def like() -> Case:
    """Return the case of a dense model whose weights come from documents."""

    def write(home: Home, out: Path) -> Files:
        weights = home.registry.likeness(EXPERTS, [home.text("math"), home.text("law")], device="cpu")
        return dense(*sorted(weights), trunk="mean", weights=weights).write(home, out)

    return Case(write, STATISTICS)


def replacing(case: Case) -> Case:
    """Return the case of a folder that stands in the place of another composition."""

    def write(home: Home, out: Path) -> Files:
        moe("code", trunk="mean").write(home, out)
        return made(out, home.registry.compose(EXPERTS, out, case.recipe, force=True).digest)

    return Case(write, case.varies, case.recipe)


def exported(ref: Callable[[Home], str]) -> Case:
    """Return the case of a version, written as it came."""

    def write(home: Home, out: Path) -> Files:
        home.registry.export(ref(home), out)
        return files_of(out)

    return Case(write, NOTHING)


def trained(case: Case, **settings: Any) -> Case:
    """Return the case of a mixture whose routers are trained."""

    def write(home: Home, out: Path) -> Files:
        case.write(home, parent := out.with_name("parent"))
        how = TrainSettings(batch_size=2, seq_len=16, device="cpu", **settings)
        done = home.registry.train_router(parent, out, ["code", str(home.text("math"))], how)
        return made(out, done.digest)

    return Case(write, STATISTICS, case.recipe)


def pushed(case: Case) -> Case:
    """Return the case of a folder as the Hub has it then."""

    def write(home: Home, out: Path) -> Files:
        case.write(home, out)
        with _hub(out.with_name("hub")) as hub:
            home.registry.push(out, "org/pushed", license="cc-by-4.0")
            return hub.files("org/pushed")

    return Case(write, case.varies, case.recipe)


def pushed_expert(ref: str) -> Case:
    """Return the case of an expert as the Hub has it then."""

    def write(home: Home, out: Path) -> Files:
        with _hub(out.with_name("hub")) as hub:
            home.registry.push_expert(ref, "org/pushed", calibration=True)
            return hub.files("org/pushed")

    return Case(write, NOTHING)


LATER_FIGURES = {
    "accuracy_by_tokens",
    "ahead_of_average",
    "average_interval",
    "experts_per_token",
    "interval",
    "losses",
    "weights",
}
"""Figures of a row that are not in the record, as it was made on machines before them."""


def evaluated(case: Case) -> Case:
    """Return the case of the figures of a mixture, of the models it is made of, and of some methods."""

    def write(home: Home, out: Path) -> Files:
        case.write(home, out)
        rows = home.registry.evaluate(
            [out],
            {domain: [home.text(domain)] for domain in EXPERTS},
            TestSettings(windows=2, seq_len=16, batch_size=2, device="cpu"),
            baselines=True,
            oracle=True,
        )
        figures = [{name: value for name, value in asdict(row).items() if name not in LATER_FIGURES} for row in rows]
        return {"figures.json": json.dumps(figures).encode()}

    return Case(write, ("figures.json",), case.recipe)


CASES: dict[str, Case] = {
    "default": composed(Recipe(device="cpu"), EXPERTS),
    "ridge": moe(),
    "one expert": moe("math"),
    "vocabulary": moe("code", MORE_TOKENS),
    "vocabulary, trunk base": moe("code", MORE_TOKENS, trunk="base"),
    # trunks
    "regmean alpha": moe(trunk_options={"alpha": 0.9}),
    "anchored": anchored(),
    "anchored bias": anchored(bias={"beside.one": -0.5}),
    "anchored trained bias": anchored(ROWED, dtype="bfloat16", temperature=0.5),
    "mean": moe(trunk="mean"),
    "base": moe(trunk="base"),
    "ties": moe(trunk="ties"),
    "ties density scale": moe(trunk="ties", trunk_options={"density": 0.5, "scale": 0.7}),
    "dare": moe(trunk="dare"),
    "dare density scale": moe(trunk="dare", trunk_options={"density": 0.3, "scale": 1.5}),
    "task-arithmetic": moe(trunk="task-arithmetic"),
    "task-arithmetic scale": moe(trunk="task-arithmetic", trunk_options={"scale": 0.7}),
    # routers
    "lam": moe(trunk="mean", lam=3.0),
    "normalize": moe(trunk="mean", normalize=True),
    "domain-embedding": moe(trunk="mean", router="domain-embedding"),
    "domain-embedding bias": moe(
        trunk="mean", router="domain-embedding", bias={"math": 0.5, "law": -1.0}, lam=1.0, normalize=True
    ),
    "random": moe(trunk="mean", router="random"),
    "random seed": moe(trunk="mean", router="random", seed=7),
    "context": moe(router="context"),
    "context whole": moe(trunk="mean", router="context", context_window=0.0, top_k=2),
    "context float16": moe("code", "math", trunk="base", router="context", dtype="float16"),
    "remote code context": moe(host="remote-code", trunk="mean", router="context"),
    "top-k 1": moe(trunk="mean", top_k=1),
    "temperature": moe(trunk="mean", temperature=1.5),
    # sums over members
    "weights": moe(weights={"code": 3.0, "math": 0.5}),
    "balance tokens": moe(balance="tokens"),
    # passes
    "refine 2": moe(refine=2),
    # how it is written
    "bfloat16": moe(dtype="bfloat16"),
    "float16": moe(dtype="float16"),
    "remote code": moe(host="remote-code"),
    "replacing": replacing(moe(trunk="ties", top_k=1)),
    # outputs
    "dense": dense(),
    "dense mean": dense(trunk="mean"),
    "dense base": dense(trunk="base"),
    "dense ties": dense(trunk="ties"),
    "dense dare": dense(trunk="dare"),
    "dense task-arithmetic": dense(trunk="task-arithmetic"),
    "dense weights": dense(weights={"code": 3.0, "math": 0.5}, balance="tokens"),
    "dense like": like(),
    "dense bfloat16": dense(trunk="mean", dtype="bfloat16"),
    "ensemble": ensemble(),
    "ensemble weights": ensemble(weights={"code": 3.0}, top_k=2, temperature=2.0),
    "ensemble float16": ensemble(dtype="float16"),
    "ensemble perplexity": ensemble(routing="perplexity", top_k=1),
    "ensemble task-vector": ensemble(routing="task-vector", routing_tokens=8),
    "ensemble prompt-perplexity": ensemble(routing="prompt-perplexity", top_k=2, routing_tokens=8),
    "ensemble logits": ensemble(mixing="logits"),
    "ensemble base trunk": ensemble(trunk="base", routing="perplexity"),
    "ensemble several": several(Recipe(to="ensemble")),
    "hetero": several(Recipe(to="hetero")),
    "hetero lead": several(
        Recipe(to="hetero", top_k=2, routing_tokens=4, temperature=0.5, lead="code", dtype="bfloat16")
    ),
    "simoe": simoe(),
    "simoe bfloat16": simoe(dtype="bfloat16"),
    "adapters": composed(Recipe(to="adapters"), Home.adapted, SUMS),
    "adapters bfloat16": composed(Recipe(to="adapters", dtype="bfloat16", context_window=0.0), Home.adapted, SUMS),
    "adapters mean": composed(Recipe(to="dense", trunk="mean"), Home.adapted, SUMS),
    "export simoe": exported(lambda home: home.sparse()[0]),
    "export": exported(lambda _: "math@1"),
    "export base": exported(lambda _: BASE),
    "export bfloat16": exported(lambda home: home.pair("qwen3")[0]),
    "train-router": trained(moe(trunk="mean"), steps=3),
    "train-router settings": trained(
        moe(trunk="mean", top_k=1, dtype="bfloat16"),
        steps=4,
        lr=0.05,
        warmup=1,
        weight_decay=0.1,
        seed=3,
        top_k_train=3,
        temperature=2.0,
        balance=0.01,
    ),
    "push": pushed(moe("code", "math", trunk="mean", top_k=1)),
    "push ensemble": pushed(ensemble(top_k=1)),
    "push-expert": pushed_expert(MORE_TOKENS),  # no other is on the Hub, which the cards of pushed folders would tell
    "evaluate": evaluated(moe("code", "law", trunk="mean", router="random")),
    # families and hosts
    **{kind: of_kind(kind) for kind in KINDS},
    **{f"{kind} context": of_kind(kind, router="context") for kind in ("olmo2", "qwen3", "gemma", "smollm3")},
    "qwen2 granitemoe": of_kind("qwen2", host="granitemoe"),
    "qwen3 float32": of_kind("qwen3", dtype="float32"),
    **{f"{kind} dense": of_kind(kind, to="dense") for kind in ("gpt-neox", "gemma", "phi3")},
}


def written(case: Case, home: Home, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of everything that a case writes to an empty folder, and the composition's digest itself."""
    found = case.write(home, folder / "out")
    return {name: data.decode() if name == DIGEST else hashlib.sha256(data).hexdigest() for name, data in found.items()}


def fingerprint() -> str:
    """Return what tells kinds of machines apart: the digest of some computations, and of the versions that compute.

    As everything else here they are done by one thread: that is for the caller to see to.
    """
    found = hashlib.sha256(f"{torch.__version__.partition('+')[0]} {transformers.__version__}".encode())
    for tensor in _computations():
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def portable(case: Case, found: Mapping[str, str]) -> dict[str, str | None]:
    """Return what a case writes on every machine; null is what depends on it."""
    return {name: None if name.endswith(case.varies) else digest for name, digest in found.items()}


def main() -> None:
    """Write `golden_compositions.json`."""
    torch.set_num_threads(1)
    golden = json.loads(GOLDEN.read_bytes()) if GOLDEN.exists() else {"everywhere": {}, "machines": {}}
    everywhere, here = dict[str, dict[str, str | None]](), dict[str, dict[str, str]]()
    with TemporaryDirectory() as above:
        take_statistics(Path(above) / "statistics")
        with golden_home(Path(above)) as home:
            for number, (name, case) in enumerate(CASES.items()):
                found = written(case, home, Path(above) / str(number))
                everywhere[name] = portable(case, found)
                if varying := {file: found[file] for file, digest in everywhere[name].items() if digest is None}:
                    here[name] = varying
                print(name)
    changed = sorted(name for name, files in everywhere.items() if golden["everywhere"].get(name, files) != files)
    others = {
        machine: own | {"written": {name: files for name, files in own["written"].items() if name not in changed}}
        for machine, own in golden["machines"].items()
    }
    machines = others | {
        fingerprint(): {"cpu": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__, "written": here}
    }
    document = {"everywhere": everywhere, "machines": machines}
    GOLDEN.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(CASES)} cases, {len(machines)} machines; changed everywhere: {', '.join(changed) or 'none'}")


@contextmanager
def _hub(folder: Path) -> Iterator[WritableHub]:
    with pytest.MonkeyPatch.context() as patch:
        yield from writable_hub(patch, folder)


def _computations() -> Iterator[Tensor]:
    """Yield the results of what sums, products and roots are computed with, over numbers that no machine rounds."""
    for rows, columns in ((5, 16), (64, 48), (130, 96)):
        steps = torch.arange(rows * columns, dtype=torch.int64) * 7919 % 1021
        exact = steps.view(rows, columns).double() / 1024 - 0.5
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            x = exact.to(dtype)
            yield x @ x.T
            yield torch.nn.functional.linear(x[None], x.flip(0))
        x = exact.float()
        yield from (x.exp(), x.tanh(), x.softmax(-1), x.log_softmax(-1), torch.nn.functional.silu(x), x.sum(0))
        yield torch.rsqrt(x.square().mean(-1) + 1e-6)
        yield torch.nn.functional.gelu(x)
        gram = exact.T @ exact + torch.eye(columns, dtype=torch.float64)
        yield torch.cholesky_solve(exact.T.contiguous(), torch.linalg.cholesky(gram))


if __name__ == "__main__":
    main()
