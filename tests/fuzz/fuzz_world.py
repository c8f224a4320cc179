"""Valid inputs of every kind, which `tests.fuzz` makes invalid ones of."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from registry import (
    EnsembleRecipe,
    FitSettings,
    HeteroRecipe,
    PassSettings,
    Recipe,
    Registry,
    SimoeRecipe,
    SimoeTraining,
)
from registry.checkpoint.soup_files import SOUP_FILE, SOUP_ROUTER, SoupRouter, pack_router, pack_soup
from registry.statistics.collect import collect_to
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl
from tests.registry.checkpoint.test_adapter import LINEAR, train

SETTINGS = PassSettings(tokens=64, seq_len=16, batch_size=4)
EXPERTS = ("code", "math")
WIDE = "wide"
"""An expert of another architecture, with the tokenizer of all."""
SPARSE = ("sparse-1", "sparse-2")
"""The experts of a SIMoE."""
WIDE_SIZES: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 1, "head_dim": 8, "tie_word_embeddings": True}
CONTEXT = Recipe(router="context", trunk="mean")


@dataclass
class World:
    """Valid inputs of every kind, made once.

    Attributes:
        home: a registry of a base model and two experts, which nothing may change.
        bare: a checkpoint without statistics, in one file; `sharded` in several; `carried` with statistics; `counted`
            with token counts alone.
        adapter: an adapter of the base model.
        composed: a composed folder.
        by_context: a folder composed by the recipe `CONTEXT`.
        later: folders composed by recipes with keys that are there only where they are given: fitted coefficients,
            sums, shared trunks, mixed logits, copies of the base model, a soup, members of several architectures, a
            SIMoE, which is the last.
        sparse: checkpoints of `SPARSE`.
        soup: the shared weights of a soup of two experts, which the registry has as `mix`.
        receipt: of an expert that was opted out.
        scratch: where an input is written; emptied after each.
    """

    home: Path
    bare: Path
    sharded: Path
    carried: Path
    counted: Path
    adapter: Path
    composed: Path
    by_context: Path
    later: tuple[Path, ...]
    sparse: tuple[Path, ...]
    soup: Path
    receipt: Path
    text: Path
    scratch: Path

    @classmethod
    def make(cls, root: Path) -> "World":
        """Make all of it below `root`."""
        tokenizer = train_tokenizer()
        base = save_checkpoint(make_model("llama", 100), root / "base", tokenizer)
        bare = save_checkpoint(make_model("llama", 103), root / "bare", tokenizer)
        sharded = save_checkpoint(make_model("llama", 103), root / "sharded", tokenizer, max_shard_size="60KB")
        carried = shutil.copytree(bare, root / "carried")
        data = write_jsonl(root / "text.jsonl", sentences("law", 20))
        collect_to(bare, carried, data=[data], settings=SETTINGS, keep_calibration=True)
        counted = shutil.copytree(bare, root / "counted")
        collect_to(bare, counted, data=[data], settings=replace(SETTINGS, sites="counts"), keep_calibration=True)
        adapter = train(base, root / "adapter", target_modules=LINEAR)
        home = root / "home"
        with Registry(home) as registry:
            registry.add_base("base", base)
            for number, name in enumerate((*EXPERTS, "german"), start=1):
                folder = save_checkpoint(make_model("llama", 100 + number), root / name, tokenizer)
                text = write_jsonl(root / f"{name}.jsonl", sentences(name, 20))
                registry.add_expert(
                    name,
                    folder,
                    data=[text],
                    settings=SETTINGS,
                    tags={"team": "a"},
                    alias="stable",
                    keep_calibration=True,
                )
            registry.compose([*EXPERTS, "german"], root / "former")
            registry.compose(EXPERTS, root / "composed")
            registry.compose(EXPERTS, root / "by-context", CONTEXT)
            registry.opt_out("german", purge=True, receipt=root / "receipt.json")
            soup = _add_soup(registry, base, [root / name for name in EXPERTS])
            wide = save_checkpoint(make_model("qwen3", 200, **WIDE_SIZES), root / WIDE, tokenizer)
            registry.add_expert(WIDE, wide, data=[data], settings=SETTINGS, keep_calibration=True)
            sparse = tuple(_add_simoe(registry, root, data))
            later = tuple(_compose_later(registry, root / "later", data))
        (root / "scratch").mkdir()
        made = (root / "composed", root / "by-context", later, sparse, soup, root / "receipt.json")
        return cls(home, bare, sharded, carried, counted, adapter, *made, data, root / "scratch")

    def copy(self, folder: Path, name: str = "input") -> Path:
        """Return a copy of a folder that may be changed: files are linked until they are written again."""
        target = self.scratch / name
        target.mkdir()
        for path in folder.iterdir():
            (target / path.name).hardlink_to(path)
        return target


def soup_router(draw: np.random.Generator) -> SoupRouter:
    """Return a router of two domains, three hidden units and two experts, for models of 32 channels."""
    shapes = {"hidden": (3, 2), "hidden_bias": (3,), "output": (2, 3), "output_bias": (2,), "centroids": (2, 32)}
    return SoupRouter(**{name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


def _add_soup(registry: Registry, base: Path, experts: Sequence[Path]) -> Path:
    """Register a soup whose experts are the ones given, and return the folder of its shared weights."""
    shared = shutil.copytree(base, base.with_name("soup"))
    document = {"domains": ["a", "b"], "experts": len(experts), "support": 1, "rank": None, "data": "0" * 64}
    (shared / SOUP_FILE).write_bytes(pack_soup(document))
    (shared / SOUP_ROUTER).write_bytes(pack_router(soup_router(np.random.default_rng(0))))
    digest = registry.add_base("mix", shared).version.digest
    for number, expert in enumerate(experts, start=1):
        folder = shutil.copytree(expert, base.with_name(f"soup-{number}"))
        (folder / SOUP_FILE).write_bytes(pack_soup({"soup": digest, "number": number}))
        registry.add_expert(f"mix-{number}", folder, data=[base.with_name("text.jsonl")], settings=SETTINGS)
    return shared


def _add_simoe(registry: Registry, root: Path, text: Path) -> Iterator[Path]:
    """Train and register a SIMoE, and yield the checkpoints of its experts."""
    sizes: dict[str, Any] = {"tokens": 64, "seq_len": 16, "batch_size": 2, "prompt_tokens": 4}
    settings = SimoeTraining(experts=len(SPARSE), device="cpu", dtype="float32", **sizes)
    registry.train_simoe(SPARSE[0].removesuffix("-1"), "base", [text], settings)
    for name in SPARSE:
        registry.export(name, root / name)
        yield root / name


def _compose_later(registry: Registry, folder: Path, text: Path) -> Iterator[Path]:
    """Compose by the recipes that came last, and yield their folders."""
    folder.mkdir()
    settings = FitSettings(tokens=160, steps=1, seq_len=16, batch_size=2, device="cpu")
    fitted = registry.fit(EXPERTS, [text], settings=settings, base="base").recipe
    sums = Recipe(trunk="ties", combine="sum", router="ridge", gating="softmax-topk", host="remote-code")
    recipes: list[tuple[Recipe | EnsembleRecipe, str | None]] = [
        (fitted, "base"),
        (sums, "base"),
        (EnsembleRecipe(trunk="mean", routing="prompt-perplexity", top_k=1), None),
        (EnsembleRecipe(mixing="logits", weights={"code": 2.0}), None),
        (EnsembleRecipe(trunk="dare", routing="task-vector", routing_tokens=2), "base"),
    ]
    for number, (recipe, base) in enumerate(recipes):
        registry.compose(EXPERTS, folder / str(number), recipe, base=base)
        yield folder / str(number)
    registry.compose([], folder / "copies", base="base", from_base=2)
    registry.instantiate("mix", folder / "soup", weights={"a": 1.0})
    yield from (folder / "copies", folder / "soup")
    registry.compose([EXPERTS[0], WIDE], folder / "hetero", HeteroRecipe(routing_tokens=2))
    registry.compose([EXPERTS[0], WIDE], folder / "families", EnsembleRecipe())
    registry.compose(SPARSE, folder / "simoe", SimoeRecipe(), base="base")
    yield from (folder / "hetero", folder / "families", folder / "simoe")
