"""Models as small as can be, for runs of thousands of operations, and what a fresh registry makes of them.

pool = make_pool(folder)                                   # checkpoints with statistics, and a base model
Fresh(pool, scratch).files({("math", "one"), ("code", "two")}, "default")   # composed where nothing else ever was
"""

import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from registry import EnsembleRecipe, PassSettings, Recipe, Registry
from registry.statistics.collect import collect_to
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}
SETTINGS = PassSettings(tokens=64, seq_len=32, batch_size=2, folds=1)
CONTENTS = ("one", "two", "three")
BASE = "zero"

RECIPES: dict[str, Callable[[], Recipe | EnsembleRecipe]] = {
    "default": Recipe,
    "mean": lambda: Recipe(trunk="mean", router="ridge", top_k=1),
    "top-1": lambda: Recipe(router="ridge", top_k=1, temperature=1.0),
    "context": lambda: Recipe(router="context", trunk="mean"),
    "dense": lambda: Recipe(to="dense"),
    "base": lambda: Recipe(trunk="base", router="random"),
    "ensemble": EnsembleRecipe,
}
"""Recipes by what the runs call them; `base` needs a base model."""

Member = tuple[str, str]
"""A name, and the checkpoint that stands under it."""


@dataclass(frozen=True)
class Pool:
    """Checkpoints by what the runs call them, and the text of one."""

    checkpoints: dict[str, Path]
    text: Path


def make_pool(folder: Path) -> Pool:
    """Write the checkpoints: experts of one base that carry statistics, the last sharing its trunk with the base."""
    tokenizer = train_tokenizer()
    checkpoints = {BASE: save_checkpoint(make_model("llama", 400, **SIZES), folder / BASE, tokenizer)}
    for number, name in enumerate(CONTENTS, start=1):
        model = make_model("llama", 400 + number, **SIZES)
        if name == CONTENTS[-1]:
            own = dict(model.named_parameters())
            with torch.no_grad():
                for key, weight in make_model("llama", 400, **SIZES).named_parameters():
                    if "mlp" not in key:
                        own[key].copy_(weight)
        checkpoints[name] = save_checkpoint(model, folder / name, tokenizer)
        data = write_jsonl(folder / f"{name}.jsonl", sentences("math", 10, seed=number))
        collect_to(checkpoints[name], checkpoints[name], data=[data], settings=SETTINGS)
    return Pool(checkpoints, folder / "one.jsonl")


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
            self._known[key] = self._make(*key)
        return self._known[key]

    def _make(self, members: frozenset[Member], recipe: str) -> dict[str, bytes]:
        with_base = recipe == "base"
        home = self._homes.setdefault((members, with_base), self._scratch / f"home-{len(self._homes)}")
        order = sorted(members)
        self._draw.shuffle(order)
        with Registry(home) as registry:
            if not registry.versions():
                if with_base:
                    registry.add_base("base", self._pool.checkpoints[BASE])
                for name, content in order:
                    registry.add_expert(name, self._pool.checkpoints[content])
            plan = registry.plan([name for name, _ in order], RECIPES[recipe]())
            registry.write(plan, self._scratch / "moe")
        found = tree(self._scratch / "moe")
        shutil.rmtree(self._scratch / "moe")
        return found
