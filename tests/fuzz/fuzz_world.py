"""Valid inputs of every kind, which `tests.fuzz` makes invalid ones of."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from registry import (
    FitSettings,
    PassSettings,
    Recipe,
    Registry,
    SimoeTraining,
)
from registry.checkpoint.trained_files import pack_document
from registry.methods.soup.versions import SOUP_FILE, SOUP_ROUTER, SoupRouter, pack_router
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
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"


class World:
    """Valid inputs of every kind, made once below a folder.

    Attributes:
        home: a registry of a base model and experts, which nothing may change.
        bare: a checkpoint without statistics, in one file; `sharded` in several; `carried` with statistics; `counted`
            with token counts alone, of a conversation by its chat template.
        adapter: an adapter of the base model.
        composed: a composed folder.
        by_context: a folder composed by the recipe `CONTEXT`.
        later: folders composed by recipes with keys that are there only where they are given: fitted coefficients,
            sums, shared trunks, mixed logits, copies of the base model, a soup, members of several architectures, a
            SIMoE, which is the last.
        sparse: checkpoints of `SPARSE`.
        soup: the shared weights of a soup of two experts, which the registry has as `mix`.
        mixture: a model of a family whose layers the registry does not know.
        receipt: of an expert that was opted out.
        text: plain text; `talk` conversations.
        scratch: where an input is written; emptied after each.
    """

    def __init__(self, root: Path) -> None:
        self.home, self.composed, self.by_context = root / "home", root / "composed", root / "by-context"
        self.receipt, self.scratch = root / "receipt.json", root / "scratch"
        self.text = write_jsonl(root / "text.jsonl", sentences("law", 20))
        self.talk = root / "talk.jsonl"
        self.talk.write_bytes(b"\n".join(map(as_conversation, sentences("law", 20))))
        tokenizer = train_tokenizer()
        base = save_checkpoint(make_model("llama", 100), root / "base", tokenizer)
        self.bare = save_checkpoint(make_model("llama", 103), root / "bare", tokenizer)
        self.sharded = save_checkpoint(make_model("llama", 103), root / "sharded", tokenizer, max_shard_size="60KB")
        self.carried, self.counted = (shutil.copytree(self.bare, root / name) for name in ("carried", "counted"))
        collect_to(self.bare, self.carried, data=[self.text], settings=SETTINGS, keep_calibration=True)
        (self.counted / "chat_template.jinja").write_text(TEMPLATE)
        counts = replace(SETTINGS, sites="counts")
        collect_to(self.counted, self.counted, data=[self.talk], settings=counts, keep_calibration=True)
        mixture = make_model("mixtral", 100, num_local_experts=2)
        self.mixture = save_checkpoint(mixture, root / "mixture", tokenizer)
        self.adapter = train(base, root / "adapter", target_modules=LINEAR)
        told: dict[str, Any] = {"settings": SETTINGS, "keep_calibration": True}
        with Registry(self.home) as registry:
            registry.add_base("base", base)
            for number, name in enumerate((*EXPERTS, "german"), start=1):
                folder = save_checkpoint(make_model("llama", 100 + number), root / name, tokenizer)
                data = [write_jsonl(root / f"{name}.jsonl", sentences(name, 20))]
                registry.add_expert(name, folder, data=data, tags={"team": "a"}, alias="stable", **told)
            registry.compose([*EXPERTS, "german"], root / "former")
            registry.compose(EXPERTS, self.composed)
            registry.compose(EXPERTS, self.by_context, CONTEXT)
            registry.opt_out("german", purge=True, receipt=self.receipt)
            self.soup = self._add_soup(registry, base)
            wide = save_checkpoint(make_model("qwen3", 200, **WIDE_SIZES), root / WIDE, tokenizer)
            registry.add_expert(WIDE, wide, data=[self.text], **told)
            self.sparse = tuple(self._add_simoe(registry, root))
            self.later = tuple(self._compose_later(registry, root / "later"))
        self.scratch.mkdir()

    def copy(self, folder: Path, name: str = "input") -> Path:
        """Return a copy of a folder that may be changed: files are linked until they are written again."""
        target = self.scratch / name
        target.mkdir()
        for path in folder.iterdir():
            (target / path.name).hardlink_to(path)
        return target

    def copied_home(self) -> Path:
        """Return a copy of the registry, which may be changed."""
        return Path(shutil.copytree(self.home, self.scratch / "home"))

    def _add_soup(self, registry: Registry, base: Path) -> Path:
        """Register a soup of `EXPERTS`, and return the folder of its shared weights."""
        shared = shutil.copytree(base, base.with_name("soup"))
        document = {"domains": ["a", "b"], "experts": len(EXPERTS), "support": 1, "rank": None, "data": "0" * 64}
        (shared / SOUP_FILE).write_bytes(pack_document(document))
        (shared / SOUP_ROUTER).write_bytes(pack_router(soup_router(np.random.default_rng(0))))
        digest = registry.add_base("mix", shared).version.digest
        for number, expert in enumerate(EXPERTS, start=1):
            folder = shutil.copytree(base.with_name(expert), base.with_name(f"soup-{number}"))
            (folder / SOUP_FILE).write_bytes(pack_document({"soup": digest, "number": number}))
            registry.add_expert(f"mix-{number}", folder, data=[self.text], settings=SETTINGS)
        return shared

    def _add_simoe(self, registry: Registry, root: Path) -> Iterator[Path]:
        """Train and register a SIMoE, and yield the checkpoints of its experts."""
        sizes: dict[str, Any] = {"tokens": 64, "seq_len": 16, "batch_size": 2, "prompt_tokens": 4}
        settings = SimoeTraining(experts=len(SPARSE), device="cpu", dtype="float32", **sizes)
        registry.train_simoe(SPARSE[0].removesuffix("-1"), "base", [self.text], settings)
        for name in SPARSE:
            registry.export(name, root / name)
            yield root / name

    def _compose_later(self, registry: Registry, folder: Path) -> Iterator[Path]:
        """Compose by the recipes that came last, and yield their folders."""
        folder.mkdir()
        settings = FitSettings(tokens=160, steps=1, seq_len=16, batch_size=2, device="cpu")
        fitted = registry.fit(EXPERTS, [self.text], settings=settings, base="base").recipe
        sums = Recipe(trunk="ties", combine="sum", router="ridge", gating="softmax-topk", host="remote-code")
        one_trunk = Recipe(to="ensemble", trunk="mean", routing="prompt-perplexity", top_k=1)
        vectors = Recipe(to="ensemble", trunk="dare", routing="task-vector", routing_tokens=2)
        registry.compose([], folder / "copies", base="base", from_base=2)
        registry.instantiate("mix", folder / "soup", weights={"a": 1.0})
        yield from (folder / "copies", folder / "soup")
        recipes: dict[str, tuple[Sequence[str], Recipe, str | None]] = {
            "fitted": (EXPERTS, fitted, "base"),
            "sums": (EXPERTS, sums, "base"),
            "one-trunk": (EXPERTS, one_trunk, None),
            "logits": (EXPERTS, Recipe(to="ensemble", mixing="logits", weights={"code": 2.0}), None),
            "vectors": (EXPERTS, vectors, "base"),
            "hetero": ([EXPERTS[0], WIDE], Recipe(to="hetero", routing_tokens=2), None),
            "families": ([EXPERTS[0], WIDE], Recipe(to="ensemble"), None),
            "adapters": (EXPERTS, Recipe(to="adapters", rank=2), "base"),
            "simoe": (SPARSE, Recipe(to="simoe"), "base"),  # the last one, which `_opened` looks for
        }
        for name, (experts, recipe, beside) in recipes.items():
            registry.compose(experts, folder / name, recipe, base=beside)
            yield folder / name


def as_conversation(text: str) -> bytes:
    """Return a row of a file in which a text is a question and its answer."""
    asked, answer = text[:20], text[20:]
    return json.dumps(
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
    ).encode()


def soup_router(draw: np.random.Generator) -> SoupRouter:
    """Return a router of two domains, three hidden units and two experts, for models of 32 channels."""
    shapes = {"hidden": (3, 2), "hidden_bias": (3,), "output": (2, 3), "output_bias": (2,), "centroids": (2, 32)}
    return SoupRouter(**{name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
