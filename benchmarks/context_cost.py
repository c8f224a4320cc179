"""Cost of context routing: time, memory and bytes of compositions of the same experts by several recipes.

    python -m benchmarks.context_cost [--shared DIR] [--rounds N] [--json FILE] [--scratch DIR]

With `--shared`, the folder with `experts` and `corpora`, five trained experts (H = 256, 6 layers, float32) are measured
too; five random ones (H = 1024, 8 layers, bfloat16) always are. All recipes take turns in every round. Times are
processor time of one thread, which other processes disturb less than the clock. Ratios are of one round each: the
median, and in brackets the least and the largest. Prints Markdown tables; `CONTEXT_COST.md` holds those of one run.
"""

import argparse
import gzip
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.compose_memory import measured
from benchmarks.random_experts import fill, text_of
from registry import PassSettings, Recipe, Registry
from registry.composition.plan import Plan
from registry.hosts.tensors import Experts, Widened
from registry.methods.moe.render import render
from registry.methods.moe.tensor_source import StoredSource
from registry.runtime.loading import load_model, load_tokenizer

NEAR = ("biomed", "code", "german", "literature", "math")
RECIPES: dict[str, dict[str, Any]] = {
    "ridge, 2 experts a token": {"router": "ridge"},
    "ridge, 1 expert a token": {"router": "ridge", "top_k": 1},
    "context": {"router": "context"},
    "context, shared vocabulary": {"router": "context", "vocabulary": "shared"},
}
"""What is compared."""

REFERENCES = ("ridge, 2 experts a token", "ridge, 1 expert a token")
"""Recipes that the others are compared with: the default, and one that runs as many experts."""

PREFILLS = ((1, 512), (8, 512))
"""Batch sizes and tokens."""

READ, STEPS = 64, 8
"""Tokens in the cache before decoding, and cached steps of a round."""

LAYERS = (2, 4, 8, 16)
"""Depths at which prefill of one text is compared; layers of the random experts are left out or repeated."""

RANDOM = {
    "vocab_size": 4096,
    "num_hidden_layers": 8,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}

Times = dict[str, list[float]]
"""Recipe → seconds of each round."""


@dataclass(frozen=True)
class ExpertSet:
    """Experts in a registry.

    Attributes:
        title: in the tables.
        home: the registry.
        experts: the members.
        fields: fields of every recipe.
        texts: token ids, (N, 512), of all domains in turn.
        dtype: that models are run in.
        depths: numbers of layers at which prefill is measured too.
    """

    title: str
    home: Path
    experts: Sequence[str]
    fields: Mapping[str, Any]
    texts: Tensor
    dtype: str
    depths: Sequence[int] = ()

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes that are compared."""
        return {name: Recipe(**{**self.fields, **given}) for name, given in RECIPES.items()}


def near_experts(shared: Path, scratch: Path) -> ExpertSet:
    """Register the trained experts."""
    rows = []
    home = scratch / "near"
    with Registry(home) as registry:
        for name in NEAR:
            folder, text = shared / "experts" / name, shared / "corpora" / name
            settings = PassSettings(tokens=4096, seq_len=256, batch_size=8)
            registry.add_expert(name, folder, data=[text / "train.jsonl.gz"], settings=settings, allow_unrelated=True)
            rows.append(token_ids(load_tokenizer(folder), text / "test.jsonl.gz", 1024))
    texts = torch.stack([row[start : start + 512] for start in (0, 512) for row in rows])
    return ExpertSet("H = 256, 6 layers, float32", home, NEAR, {}, texts, "float32")


def token_ids(tokenizer: Any, path: Path, count: int) -> Tensor:
    """Return the first tokens of a file of documents, (`count`,)."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for _, line in zip(range(50), file, strict=False)]
    return torch.tensor(tokenizer(" ".join(texts), verbose=False).input_ids[:count])


def random_experts(scratch: Path) -> ExpertSet:
    """Register random experts, each with text of its own."""
    home, names = fill(scratch, len(NEAR), **RANDOM)
    with Registry(home) as registry:
        plan = registry.plan(names, Recipe(trunk="mean"))
        registry.write(plan, scratch / "tokenizer")
    tokenizer = load_tokenizer(scratch / "tokenizer")
    shutil.rmtree(scratch / "tokenizer")
    rows = [
        torch.tensor(tokenizer(text, verbose=False).input_ids[:512]) for text in map(text_of, range(1, len(NEAR) + 1))
    ]
    title = f"H = {RANDOM['hidden_size']}, {RANDOM['num_hidden_layers']} layers, bfloat16"
    return ExpertSet(title, home, names, {"trunk": "mean"}, torch.stack(rows * 2), "bfloat16", LAYERS)


# -- measuring ---------------------------------------------------------------------------------------------------------


def in_turn(sides: Mapping[str, Callable[[int], float]], rounds: int) -> Times:
    """Return the seconds of each side in each round, after one round that does not count."""
    found: Times = {name: [] for name in sides}
    for number in range(-1, rounds):
        for name, side in sides.items():
            seconds = side(max(number, 0))
            if number >= 0:
                found[name].append(seconds)
    return found


def seconds_of(act: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    act()
    return time.process_time() - start


@torch.no_grad()
def prefill(model: Any, texts: Tensor, batch: int, length: int, number: int) -> float:
    """Time a pass over a batch of texts, which differ from round to round."""
    rows = [(number * batch + row) % len(texts) for row in range(batch)]
    ids = texts[rows, :length]
    return seconds_of(lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1))


@torch.no_grad()
def decode(model: Any, texts: Tensor, number: int) -> float:
    """Time cached steps of one text, and return the seconds of a step."""
    ids = texts[number % len(texts)][None]
    cache = model(input_ids=ids[:, :READ], use_cache=True).cache

    def steps() -> None:
        for place in range(READ, READ + STEPS):
            model(input_ids=ids[:, place : place + 1], cache=cache, use_cache=True)

    return seconds_of(steps) / STEPS


def set_layers(model: Any, layers: Sequence[Any], count: int) -> None:
    """Give a model `count` of its layers beside those that context routing adds, for passes without a cache."""
    added = set(getattr(model.config, "context_layers", ()))
    inner = [layer for number, layer in enumerate(layers) if number not in added]
    inner = [inner[number % len(inner)] for number in range(count)]
    last = [layers[-1]] if len(layers) - 1 in added else []
    kept = [*([layers[0]] if 0 in added else []), *inner, *last]
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[0]] * len(kept)


def copy_experts(plan: Plan) -> float:
    """Read, check and lay out the members' expert tensors, and return their bytes per second of processor time."""
    source, nbytes = StoredSource(plan), 0
    start = time.process_time()
    for tensor in plan.tensors:
        inner = tensor.made.inner if isinstance(tensor.made, Widened) else tensor.made
        if isinstance(inner, Experts):
            nbytes += inner_bytes(inner, tensor.nbytes, tensor.shape)
            for _ in render(source, tensor):
                pass
    return nbytes / (time.process_time() - start)


def inner_bytes(experts: Experts, nbytes: int, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of experts before it is widened."""
    return nbytes * int(torch.Size(experts.shape).numel()) // int(torch.Size(shape).numel())


def measure_set(experts: ExpertSet, scratch: Path, rounds: int) -> dict[str, Any]:
    """Return the figures of one set of experts: row → recipe → figures of each round, or one figure."""
    folders = {name: scratch / str(number) for number, name in enumerate(RECIPES)}
    found: dict[str, Any] = {}
    with Registry(experts.home) as registry:
        plans = {name: registry.plan(experts.experts, recipe) for name, recipe in experts.recipes().items()}
        mixtures = {name: plan for name, plan in plans.items() if isinstance(plan, Plan)}

        def compose(name: str, _number: int) -> float:
            shutil.rmtree(folders[name], ignore_errors=True)
            return seconds_of(lambda: registry.write(mixtures[name], folders[name]))

        found["compose, s"] = in_turn({name: partial(compose, name) for name in mixtures}, max(3, rounds // 3))
        speeds = in_turn({name: partial(_speed, plan) for name, plan in mixtures.items()}, max(3, rounds // 3))
        found["copying of experts, MB/s"] = speeds
    found["folder, MB"] = {
        name: sum(path.stat().st_size for path in folder.iterdir()) / 1e6 for name, folder in folders.items()
    }
    sizes = {name: plan.parts.architecture for name, plan in mixtures.items()}
    found["hidden size"] = {name: size.hidden_size for name, size in sizes.items()}
    found["layers"] = {name: size.num_hidden_layers for name, size in sizes.items()}
    found["parameters, M"] = {name: plan.parameters / 1e6 for name, plan in mixtures.items()}
    found["active parameters, M"] = {name: plan.active_parameters / 1e6 for name, plan in mixtures.items()}
    body = "from benchmarks.context_cost import run_once\nrun_once({0!r}, {1!r})"
    found["peak memory, MB"] = {
        name: measured(body.format(str(folder), experts.dtype))["peak"] / 1e6 for name, folder in folders.items()
    }
    models = {name: load_model(folder, experts.dtype, "cpu") for name, folder in folders.items()}
    for batch, length in PREFILLS:
        sides = {name: partial(prefill, model, experts.texts, batch, length) for name, model in models.items()}
        found[f"prefill {batch} × {length}, s"] = in_turn(sides, rounds if batch == 1 else max(2, rounds // 3))
    sides = {name: partial(decode, model, experts.texts) for name, model in models.items()}
    found["decode, s a token"] = in_turn(sides, rounds)
    layers = {name: list(model.model.layers) for name, model in models.items()}
    for count in experts.depths:
        for name, model in models.items():
            set_layers(model, layers[name], count)
        sides = {name: partial(prefill, model, experts.texts, 1, 512) for name, model in models.items()}
        found[f"prefill 1 × 512, {count} layers, s"] = in_turn(sides, max(3, rounds // 2))
    return found


def _speed(plan: Plan, _number: int) -> float:
    return copy_experts(plan) / 1e6


def run_once(folder: str, dtype: str) -> None:
    """Load a folder and run one text through it, for its peak memory."""
    torch.set_num_threads(1)
    model = load_model(Path(folder), dtype, "cpu")
    with torch.no_grad():
        model(input_ids=torch.arange(1, 257).repeat(2)[None], use_cache=False, logits_to_keep=1)


# -- the tables --------------------------------------------------------------------------------------------------------


def table(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of one set's table."""
    yield f"| {title} | {' | '.join(RECIPES)} |"
    yield "|---|" + "---:|" * len(RECIPES)
    for row, figures in found.items():
        if not isinstance(next(iter(figures.values())), Sequence):
            yield f"| {row} | {' | '.join(_number(own) for own in figures.values())} |"
            continue
        yield f"| {row} | {' | '.join(_number(statistics.median(own)) for own in figures.values())} |"
        for reference in REFERENCES:
            yield f"| – against {reference} | {' | '.join(_ratios(figures, reference))} |"


def _number(value: float) -> str:
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ratios(figures: Mapping[str, Sequence[float]], reference: str) -> Iterator[str]:
    for name, own in figures.items():
        ratios = [mine / other for mine, other in zip(own, figures[reference], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        yield "" if name == reference else spread


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, help="folder with `experts` and `corpora`")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures of every round there")
    parser.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of processes that this one starts
    found = {}
    for kind in ("near", "random"):
        if kind == "near" and given.shared is None:
            continue
        with tempfile.TemporaryDirectory(prefix="reg-cost-", dir=given.scratch) as folder:
            scratch = Path(folder)
            experts = near_experts(given.shared, scratch) if kind == "near" else random_experts(scratch)
            found[experts.title] = measure_set(experts, scratch, given.rounds)
            print("\n".join(table(experts.title, found[experts.title])), end="\n\n", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
