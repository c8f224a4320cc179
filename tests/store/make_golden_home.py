"""Writes the golden home of the newest revision; run once when a revision is added, then never again for it.

    python tests/store/make_golden_home.py

It imports nothing of the tests, so that an older program can run it too: PYTHONPATH=<its tree>.
The checkpoints are the same for every revision. So are the statistics, which tests compare: their last bits depend on
the machine, so the homes of later revisions were not made here but are that of 37ba63a23494, upgraded.
"""

import json
import os
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from registry import PassSettings, Recipe, RegError, Registry
from store.catalog import schema

WORDS = ["<eos>", "<unk>", "sum", "product", "prove", "let", "def", "return", "class", "print", "court", "party", "act"]
SETTINGS = PassSettings(tokens=64, seq_len=16, batch_size=2)
RECIPES: dict[str, dict[str, Any]] = {
    "mean": {"trunk": "mean", "router": "ridge"},
    "regmean": {"trunk": "regmean", "router": "ridge"},
    "base": {"trunk": "base", "router": "ridge", "lam": 0.5, "top_k": 2},
    "context": {"router": "context"},
}
MTIME = (2000, 1, 1, 0, 0, 0)


def checkpoint(folder: Path, seed: int) -> Path:
    """Write a Llama of one layer: the base of all for seed 0, else moved from it."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    base, own = torch.Generator().manual_seed(7), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(torch.randn(weight.shape, generator=base) * 0.3 + ("norm" in name))
            if seed:
                weight.add_(torch.randn(weight.shape, generator=own) * 0.1)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<eos>", eos_token="<eos>", pad_token="<eos>")
    fast.save_pretrained(folder)
    return folder


def text(path: Path, words: str) -> Path:
    """Write a text of some words."""
    path.write_text(
        "".join(json.dumps({"text": " ".join([word, *words.split()] * 3)}) + "\n" for word in words.split())
    )
    return path


def main(target: Path) -> None:
    """Write `<target>/<revision>.zip`."""
    with TemporaryDirectory() as temporary:
        os.chdir(temporary)
        place = Path(temporary)
        sums, code = text(place / "math.jsonl", "sum product prove let"), text(place / "code.jsonl", "def return class")
        with Registry(place / "home") as registry:
            registry.add_base("base", checkpoint(place / "base", 0))
            for name, seed, data in (("code", 1, code), ("math", 2, sums), ("math", 3, sums)):
                registry.add_expert(
                    name, checkpoint(place / f"{name}{seed}", seed), data=[data], settings=SETTINGS, tags={"team": "x"}
                )
                if seed == 2:
                    registry.opt_out("math@1", purge=True)
            registry.alias("math@2", "stable")
            for name, options in RECIPES.items():
                try:
                    recipe = Recipe(**options)
                except RegError:  # from before there was this method
                    continue
                registry.compose(["code", "math"], place / "moe" / name, recipe)
        files = {
            f"home/{p.relative_to('home')}": p.read_bytes() for p in sorted(Path("home").rglob("*")) if p.is_file()
        }
        with zipfile.ZipFile(target / f"{schema.HEAD}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in files.items():
                if not name.endswith(("-wal", "-shm")) and not name.startswith(("home/lock", "home/locks")):
                    archive.writestr(zipfile.ZipInfo(name, MTIME), content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden").absolute())
