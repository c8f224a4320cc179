"""The rates of one worker on this machine, and how well they foretell the times of a larger model.

Rates come from a small model; the check registers and composes a large one, and compares each step with the product of
rates and shape.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import random_experts
from benchmarks.random_experts import make_checkpoint, text_of
from benchmarks.scale.arithmetic import (
    LLAMA_8B,
    SUM_BYTES,
    Rates,
    Shape,
    composed_bytes,
    composing,
    registering,
)
from registry import PassSettings, Recipe, Registry
from registry.maths.digits import Splitter
from registry.maths.gram import GramAccumulator
from registry.progress import Advance
from registry.runtime.upcast import load_for_pass
from store.catalog import ArrayLink, Catalog, NewVersion

TOKENS = 4096
SETTINGS = PassSettings(tokens=TOKENS, device="cpu")
SMALL = Shape("small", 1024, 4, 4096, 16, 4, 64, 16_384)
LARGE = Shape("large", 2048, 8, 8192, 32, 8, 64, 16_384)
MEMBERS = 2

GRAM_WIDTH, SOLVE_WIDTH = 2048, 2048
ADDED, LISTED = 20, 50
"""Registrations and lists that the rates of a catalog are measured on."""


@dataclass(frozen=True)
class Check:
    """A step of the large model: what rates and shape give, and what was measured, in seconds."""

    name: str
    predicted: float
    measured: float


class Steps:
    """A progress that adds up the seconds of each step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, label: str, _total: int, unit: str) -> Iterator[Advance]:
        """Time one step."""
        start = time.perf_counter()
        yield lambda amount: None
        if unit:
            self.seconds[label] += time.perf_counter() - start


@dataclass(frozen=True)
class Measured:
    """The steps of one model, in seconds, and the share of statistics on disk."""

    hashing: float
    collecting: float
    storing: float
    composing: float
    copying: float
    forward: float
    compressed: float


def measure(scratch: Path, database: str | None = None) -> tuple[Rates, list[Check]]:
    """Return the rates, and their check on the large model.

    Args:
        scratch: an empty folder.
        database: a SQLAlchemy URL of an empty database for the catalog's rates; default SQLite.
    """
    grams, solved = _gram_rate(), _solve_rate()
    small, large = _run(SMALL, scratch / "small"), _run(LARGE, scratch / "large")
    added, listed = _catalog_rates(scratch, database)
    small_bytes = 2 * SMALL.weights
    rates = Rates(
        hashed=small_bytes / small.hashing,
        stored=(small_bytes + SUM_BYTES * SMALL.sums()) / small.storing,
        passed=SMALL.pass_products(TOKENS) / small.forward,
        grams=grams,
        composed=composed_bytes(SMALL, MEMBERS) / small.copying,
        solved=solved,
        compressed=large.compressed,
        added=added,
        listed=listed,
    )
    steps = {step.name: step.seconds for step in registering(LARGE, rates, TOKENS)}
    steps |= {step.name: step.seconds for step in composing(LARGE, rates, MEMBERS)}
    checks = [
        Check("hashing", steps["hashing"], large.hashing),
        Check("forward pass and Grams", steps["forward pass"] + steps["Grams"], large.collecting),
        Check("storing", steps["storing"], large.storing),
        Check("composing, trunk mean", steps["copying"], large.copying),
        Check("composing, trunk regmean", steps["solving"] + steps["copying"], large.composing),
    ]
    return rates, checks


def _run(shape: Shape, scratch: Path) -> Measured:
    """Register a base model and experts of a shape, and compose them."""
    random_experts.CONFIG.update(
        {
            "vocab_size": shape.vocab,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "tie_word_embeddings": shape.tied,
        }
    )
    scratch.mkdir(parents=True)
    text, steps = scratch / "text.txt", Steps()
    with Registry(scratch / "home", progress=steps) as registry:
        for number in range(MEMBERS):
            folder = make_checkpoint(scratch / "checkpoint", number)
            text.write_text("\n".join([text_of(number + 1)] * 8), encoding="utf-8")
            steps.seconds.clear()
            registry.add_expert(f"expert{number}", folder, data=[text], settings=SETTINGS, allow_unrelated=True)
            if number + 1 < MEMBERS:
                shutil.rmtree(folder)
        found = dict(steps.seconds)
        of_statistics = [
            (link.nbytes, registry.arrays.disk_bytes(link.digest))
            for link in registry.arrays_of(registry.resolve("expert0"))
            if link.role == "statistics"
        ]
        composed = {}
        for trunk in ("mean", "regmean"):
            start = time.perf_counter()
            names = [f"expert{number}" for number in range(MEMBERS)]
            registry.compose(names, scratch / trunk, Recipe(trunk=trunk, router="ridge"))
            composed[trunk] = time.perf_counter() - start
    forward = _forward(folder)
    shutil.rmtree(scratch)
    raw, packed = map(sum, zip(*of_statistics, strict=True))
    return Measured(
        found["hashing"],
        found["collecting"],
        found["storing"],
        composed["regmean"],
        composed["mean"],
        forward,
        packed / raw,
    )


def _forward(folder: Path) -> float:
    """Return the seconds of a bare pass over the tokens, without the head, in the dtype that registering chooses."""
    model = load_for_pass(folder, "auto", "cpu")
    ids = torch.randint(0, 256, (TOKENS // SETTINGS.seq_len, SETTINGS.seq_len))

    def run(windows: torch.Tensor) -> float:
        start = time.perf_counter()
        with torch.no_grad():
            for first in range(0, len(windows), SETTINGS.batch_size):
                model.base_model(input_ids=windows[first : first + SETTINGS.batch_size], use_cache=False)
        return time.perf_counter() - start

    run(ids[:2])
    return run(ids)


def _gram_rate() -> float:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, GRAM_WIDTH, generator=draw)
    sums = GramAccumulator(torch.full((GRAM_WIDTH,), 10, dtype=torch.int16), 16, Splitter())
    sums.add([x])
    start = time.perf_counter()
    sums.add([x])
    sums.matrix()
    return TOKENS * GRAM_WIDTH**2 / (time.perf_counter() - start)


def _solve_rate() -> float:
    x = torch.randn(SOLVE_WIDTH, SOLVE_WIDTH, dtype=torch.float64)
    torch.mm(x, x)
    start = time.perf_counter()
    torch.mm(x, x)
    return SOLVE_WIDTH**3 / (time.perf_counter() - start)


def _catalog_rates(scratch: Path, database: str | None) -> tuple[float, float]:
    """Return registrations in a second of versions with the rows of an 8B expert, and lists of 20 versions."""
    names = [f"layers.{layer}.{part}" for layer in range(LLAMA_8B.layers) for part in range(13)]
    url = database or f"sqlite:///{scratch / 'catalog.sqlite'}"
    catalog = Catalog(url, scratch / "lock")
    try:
        start = time.perf_counter()
        for number in range(ADDED):
            links = tuple(
                ArrayLink("mlp", name, f"{number:032x}{row:032x}", "bfloat16", (4, 4), 32)
                for row, name in enumerate(names)
            )
            catalog.add_version(NewVersion(f"e{number}", "expert", f"{number:064x}", {}, LLAMA_8B.weights, links))
        added = ADDED / (time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(LISTED):
            catalog.versions(limit=20)
        return added, LISTED / (time.perf_counter() - start)
    finally:
        catalog.close()
