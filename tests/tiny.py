"""Models as small as can be, for runs of thousands of operations, and what a fresh registry makes of them.

pool = make_pool(folder)                                   # checkpoints with statistics, and a base model
Fresh(pool, scratch).files({("math", "one"), ("code", "two")}, "default")   # composed where nothing else ever was
"""

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry import (
    FitSettings,
    PassSettings,
    Recipe,
    Registry,
    SimoeTraining,
    SoupTraining,
)
from registry.statistics.collect import collect_to
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "tie_word_embeddings": True}
WIDE_SIZES = SIZES | {"hidden_size": 24, "num_attention_heads": 3, "head_dim": 8}
SETTINGS = PassSettings(tokens=64, seq_len=32, batch_size=2)
CONTENTS = ("one", "two", "three")
BASE = "zero"

SOUP, BASE_NAME = "soup", "base"
"""The names under which a soup and the base model are registered."""

PARTS = ("soup-1", "soup-2")
"""The soup's experts."""

SPARSE = ("sparse-1", "sparse-2")
"""The experts of a SIMoE, and what the checkpoints are called that came of its training."""

WIDE = "wide"
"""An expert of another architecture with the tokenizer of all, and what its checkpoint is called."""

RECIPES: dict[str, Callable[[Sequence[str]], Recipe]] = {
    "default": lambda _: Recipe(),
    "mean": lambda _: Recipe(trunk="mean", router="ridge", top_k=1),
    "top-1": lambda _: Recipe(router="ridge", top_k=1, temperature=1.0),
    "context": lambda _: Recipe(router="context", trunk="mean"),
    "dense": lambda _: Recipe(to="dense"),
    "base": lambda _: Recipe(trunk="base", router="random"),
    "coefficients": lambda names: Recipe(
        to="dense", trunk="task-arithmetic", coefficients={name: len(name) / 8 - 0.5 for name in names}
    ),
    "sums": lambda _: Recipe(
        trunk="ties", combine="sum", router="ridge", gating="softmax-topk", host="remote-code", top_k=1
    ),
    "ensemble": lambda _: Recipe(to="ensemble"),
    "prompt": lambda _: Recipe(to="ensemble", routing="prompt-perplexity", mixing="logits", routing_tokens=0),
    "one trunk": lambda _: Recipe(to="ensemble", trunk="regmean", routing="perplexity", top_k=1),
    "task vectors": lambda _: Recipe(to="ensemble", trunk="dare", routing="task-vector"),
}
"""What the runs call a recipe → the recipe for members of some names, which have one architecture and statistics."""

FOR_SPARSE = ("simoe", "base", "coefficients", "ensemble")
"""Recipes for the experts of a SIMoE, of which all but the first take others too: they need no statistics."""

FOR_SEVERAL = ("hetero", "ensemble", "prompt")
"""Recipes for members of several architectures."""

ALL_RECIPES = RECIPES | {
    "simoe": lambda _: Recipe(to="simoe"),
    "hetero": lambda _: Recipe(to="hetero", routing_tokens=2),
}
"""`RECIPES`, and those for members of a kind of their own."""

WITH_BASE = {"base", "coefficients", "sums", "task vectors", "simoe", "fit", "copies"}
"""Recipes, and other ways to compose, in which the base model takes part."""

Member = tuple[str, str]
"""A name, and the checkpoint that stands under it."""


@dataclass(frozen=True)
class Pool:
    """Checkpoints by what the runs call them, and the text of one."""

    checkpoints: dict[str, Path]
    text: Path


def save_expert(folder: Path, text: Path, settings: PassSettings, model: Any) -> Path:
    """Write a checkpoint that carries its statistics of a text."""
    save_checkpoint(model, folder, train_tokenizer())
    collect_to(folder, folder, data=[text], settings=settings, keep_calibration=True)
    return folder


def make_pool(folder: Path) -> Pool:
    """Write the checkpoints: experts of one base that carry statistics, the last sharing its trunk with the base."""
    checkpoints = {BASE: save_checkpoint(make_model("llama", 400, **SIZES), folder / BASE, train_tokenizer())}
    for number, name in enumerate(CONTENTS, start=1):
        model = make_model("llama", 400 + number, **SIZES)
        if name == CONTENTS[-1]:
            base = make_model("llama", 400, **SIZES).state_dict()
            model.load_state_dict({key: weight for key, weight in base.items() if "mlp" not in key}, strict=False)
        text = write_jsonl(folder / f"{name}.jsonl", sentences("math", 10, seed=number))
        checkpoints[name] = save_expert(folder / name, text, SETTINGS, model)
    return Pool(checkpoints, folder / "one.jsonl")


TRAINING: dict[str, Any] = {"tokens": 64, "seq_len": 16, "batch_size": 2, "device": "cpu", "dtype": "float32"}


def with_others(pool: Pool, folder: Path) -> Pool:
    """Return the pool with `WIDE` and the experts of a SIMoE, which is trained here, written to `folder`."""
    save_expert(folder / WIDE, pool.text, SETTINGS, make_model("qwen3", 500, **WIDE_SIZES))
    with Registry(folder / "simoe-home") as registry:
        registry.add_base(BASE_NAME, pool.checkpoints[BASE])
        settings = SimoeTraining(experts=len(SPARSE), prompt_tokens=4, **TRAINING)
        registry.train_simoe(SPARSE[0].removesuffix("-1"), BASE_NAME, [pool.text], settings)
        for name in SPARSE:
            registry.export(name, folder / name)
    return Pool(pool.checkpoints | {name: folder / name for name in (WIDE, *SPARSE)}, pool.text)


def train_soup(registry: Registry, pool: Pool) -> None:
    """Train the soup, which is a function of the pool alone, and register it."""
    domains = {content: [pool.checkpoints[content].with_suffix(".jsonl")] for content in CONTENTS[:2]}
    settings = SoupTraining(experts=2, rank=2, hidden=4, **TRAINING)
    registry.train_soup(SOUP, pool.checkpoints[BASE], domains, settings)


def make(registry: Registry, refs: Sequence[str], out: Path, recipe: str, text: Path) -> None:
    """Compose by one of `ALL_RECIPES`, by a `fit`, from `copies` of the base model, or of the soup."""
    base = BASE_NAME if recipe in WITH_BASE else None
    if recipe == SOUP:
        registry.instantiate(SOUP, out, weights={CONTENTS[0]: 3, CONTENTS[1]: 1}, force=True)
    elif recipe == "copies":
        registry.compose([], out, base=base, from_base=2, force=True)
    elif recipe == "fit":
        settings = FitSettings(tokens=160, steps=2, seq_len=16, batch_size=2, device="cpu")
        fitted = registry.fit(refs, [text], settings=settings, base=base).recipe
        registry.compose(refs, out, fitted, base=base, force=True)
    else:
        names = [ref.partition("@")[0] for ref in refs]
        registry.compose(refs, out, ALL_RECIPES[recipe](names), base=base, force=True)


def perform(home: Path, command: dict[str, Any], registry: Registry | None = None) -> None:
    """Do a command on the registry in `home`, which is opened unless it is given."""
    if registry is None:
        with Registry(home) as opened:
            return perform(home, command, opened)
    given = dict(command)
    match given.pop("do"):
        case "add":
            add = registry.add_base if given.pop("kind") == "base" else registry.add_expert
            add(given["name"], given["checkpoint"], alias=given["alias"], tags=given["tags"])
        case "alias":
            registry.alias(given["ref"], given["alias"])
        case "remove-alias":
            registry.remove_alias(given["name"], given["alias"])
        case "train-soup":
            train_soup(registry, Pool({name: Path(path) for name, path in given["checkpoints"].items()}, Path()))
        case "compose":
            make(registry, given["refs"], home / given["folder"], given["recipe"], Path(given["text"]))
        case "opt-out":
            registry.opt_out(given["ref"], purge=given["purge"])
        case "gc":
            registry.gc()
    return None


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file directly in `folder`, which has no folders in it."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Fresh:
    """What registries make that never held anything but the members asked for, registered in an order of their own."""

    def __init__(self, pool: Pool, scratch: Path, seed: int = 0) -> None:
        self._pool, self._scratch = pool, scratch
        self._draw = random.Random(seed)
        self._homes: dict[tuple[frozenset[Member], bool], Path] = {}
        self._known: dict[tuple[frozenset[Member], str], dict[str, bytes]] = {}

    @property
    def made(self) -> int:
        """How many compositions were made."""
        return len(self._known)

    def files(self, members: Iterable[Member], recipe: str) -> dict[str, bytes]:
        """Return the files of a composition, by their names."""
        key = frozenset(members), recipe
        if key not in self._known:
            self._known[key] = self._make(sorted(key[0]), recipe)
        return self._known[key]

    def _make(self, order: list[Member], recipe: str) -> dict[str, bytes]:
        place = frozenset(order), recipe in WITH_BASE
        home = self._homes.setdefault(place, self._scratch / f"home-{len(self._homes)}")
        self._draw.shuffle(order)
        with Registry(home) as registry:
            if not registry.versions():
                if recipe in WITH_BASE:
                    registry.add_base(BASE_NAME, self._pool.checkpoints[BASE])
                if recipe == SOUP:
                    train_soup(registry, self._pool)
                for name, content in () if recipe == SOUP else order:
                    registry.add_expert(name, self._pool.checkpoints[content])
            make(registry, [name for name, _ in order], self._scratch / "moe", recipe, self._pool.text)
        found = tree(self._scratch / "moe")
        shutil.rmtree(self._scratch / "moe")
        return found
