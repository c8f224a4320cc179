"""Valid inputs of every kind, which `tests.fuzz` makes invalid ones of."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from registry import PassSettings, Recipe, Registry
from registry.statistics.collect import collect_to
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl
from tests.registry.checkpoint.test_adapter import LINEAR, train

SETTINGS = PassSettings(tokens=64, seq_len=16, batch_size=4)
EXPERTS = ("code", "math")
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
                registry.add_expert(name, folder, data=[text], settings=SETTINGS, tags={"team": "a"}, alias="stable")
            registry.compose([*EXPERTS, "german"], root / "former")
            registry.compose(EXPERTS, root / "composed")
            registry.compose(EXPERTS, root / "by-context", CONTEXT)
            registry.opt_out("german", purge=True, receipt=root / "receipt.json")
        (root / "scratch").mkdir()
        made = (root / "composed", root / "by-context", root / "receipt.json")
        return cls(home, bare, sharded, carried, counted, adapter, *made, data, root / "scratch")

    def copy(self, folder: Path) -> Path:
        """Return a copy of a folder that may be changed: files are linked until they are written again."""
        target = self.scratch / "input"
        target.mkdir()
        for path in folder.iterdir():
            (target / path.name).hardlink_to(path)
        return target
