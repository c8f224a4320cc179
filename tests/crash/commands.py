"""The writing commands, the checkpoints that they are given, and the places that they begin from.

A *world* is one folder: the registry's home, what commands write beside it, and the system's temporary folder.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

import cli.main
import registry.statistics.forward_pass
import registry.training.loop
from registry import PassSettings, Recipe, Registry
from registry.statistics.file import FILE_NAME
from tests.models import WORDS, make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl
from tests.tiny import SIZES, WIDE, WIDE_SIZES, save_expert

FIRST_CATALOG = Path(__file__).parents[1] / "store" / "golden" / "52de1a479ec3.sqlite"
NAMES = ("base", "code", "math", "law", "german")
SHORT = {
    "BOTH": "--data GIVEN/code.jsonl --data GIVEN/math.jsonl",
    "COMPOSE": "compose --experts math,code",
    "EACH": "--data math=GIVEN/math.jsonl --data code=GIVEN/code.jsonl --windows 2 --seq-len 16 --batch-size 1",
    "FIT": "--fit GIVEN/law.jsonl --fit-tokens 1280 --fit-steps 3 --fit-device cpu",
    "LAW": "GIVEN/law-bare --data GIVEN/law.jsonl",
    "MOE": "--force --out WORLD/moe",
    "OUT": "--out WORLD/out",
    "PASS": "--tokens 64 --seq-len 32 --batch-size 1",
    "TRAIN": "--tokens 96 --seq-len 16 --batch-size 2 --device cpu --dtype float32",
}
"""Words of the lines below → what they stand for; WORLD and GIVEN are folders."""
_LINES = {
    "empty": {"first": "add-base base GIVEN/base --license mit --tag a=b --alias stable"},
    "full": {
        "add-base": "add-base other GIVEN/law --tag a=b",
        "add-pass": "add-expert law LAW PASS --keep-calibration --tag a=b --alias stable",
        "add-counts": "add-expert law LAW PASS --sites counts --keep-calibration",
        "add-sampled": "add-expert law GIVEN/law-bare PASS",
        "add-adapter": "add-expert merged GIVEN/adapter --base base --data GIVEN/law.jsonl PASS",
        "add-carried": "add-expert law GIVEN/law",
        "tags": "add-expert math GIVEN/math --tag a=b --tag c=d",
        "alias": "alias math@1 stable",
        "unalias": "alias code stable --delete",
        "collect": "collect LAW PASS OUT",
        "collect-counts": "collect LAW PASS --sites counts OUT",
        "compose": "COMPOSE --router ridge --lam 0.5 MOE",
        "context": "COMPOSE --router context MOE",
        "dense": "COMPOSE --to dense OUT",
        "ensemble": "COMPOSE --to ensemble MOE",
        "ensemble-trunk": "COMPOSE --to ensemble --routing prompt-perplexity --mixing logits --trunk regmean MOE",
        "sums": "COMPOSE --trunk ties --combine sum --router ridge --gating softmax-topk --remote-code MOE",
        "from-base": "compose --from-base 2 --base base MOE",
        "fit": "COMPOSE --to dense --trunk task-arithmetic FIT OUT",
        "refine": "COMPOSE --router ridge --refine 2 OUT",
        "opt-out": "opt-out math --yes",
        "purge": "opt-out math --purge --yes --receipt WORLD/receipt.json",
        "proxy": "proxy GIVEN/law.jsonl --experts math,code --base base --documents 5 --device cpu OUT",
        "audit-extraction": "audit-extraction WORLD/moe --data GIVEN/code.jsonl --documents 2 --prefix 4 "
        "--continued 4 --samples 2 --device cpu",
        "train-expert": "train-expert law --base base --data GIVEN/law.jsonl --coordinate TRAIN",
        "train-soup": "train-soup soup --base base --domains GIVEN/code.jsonl --domains GIVEN/math.jsonl "
        "--experts 2 --rank 2 TRAIN",
        "train-simoe": "train-simoe sparse --base base BOTH --experts 2 --prompt-tokens 4 TRAIN",
        "export": "export math OUT",
        "evaluate": "evaluate WORLD/moe EACH --oracle --baselines",
        "methods": "evaluate --experts math,code --methods average,dume EACH",
        "continual": "continual --schedule code,math EACH",
        "reproduce": "reproduce WORLD/moe",
        "reproduce-out": "reproduce WORLD/moe OUT",
    },
    "garbage": {"gc": "gc"},
    "golden": {"upgrade": "db upgrade"},
    "ridge": {
        "train-router": "train-router WORLD/moe BOTH --steps 3 --batch-size 2 --seq-len 16 --device cpu --force OUT",
        "train": "train WORLD/moe --train all BOTH TRAIN --force OUT",
    },
    "soup": {
        "instantiate": "instantiate soup --weights code=3,math=1 MOE",
        "instantiate-like": "instantiate soup --like GIVEN/law.jsonl OUT",
        "instantiate-fit": "instantiate soup FIT OUT",
    },
    "simoe": {
        "simoe": "compose --experts sparse-1,sparse-2 --to simoe MOE",
        "purge-simoe": "opt-out sparse-1 --purge --yes --receipt WORLD/receipt.json",
    },
    "adapted": {
        "adapters": "compose --experts tuned --to adapters MOE",
        "export-lora": "export tuned --as lora OUT",
        "purge-adapter": "opt-out tuned --purge --yes --receipt WORLD/receipt.json",
    },
    "several": {
        "hetero": "compose --experts code,wide --to hetero --routing-tokens 2 MOE",
        "families": "compose --experts code,wide --to ensemble MOE",
    },
}
"""Place to begin from → name → line of every command that writes."""


@dataclass(frozen=True)
class Command:
    """A command line, and the place it begins from."""

    start: str
    line: str

    def words(self, world: Path, given: Path) -> list[str]:
        """Return the words after `reg --home HOME`."""
        line = " ".join(SHORT.get(word, word) for word in self.line.split())
        return line.replace("WORLD", str(world)).replace("GIVEN", str(given)).split()


COMMANDS = {name: Command(start, line) for start, lines in _LINES.items() for name, line in lines.items()}


def run(world: Path, words: Sequence[object]) -> Result:
    """Run one command of `reg` on the home of a world, in this process."""
    registry.statistics.forward_pass.SAVE_SECONDS = 0.0  # written down at every step
    registry.training.loop.SAVE_SECONDS = 0.0
    tempfile.tempdir = str(world / "tmp")
    return CliRunner().invoke(cli.main.main, ["--home", str(world / "home"), *map(str, words)])


def make_given(given: Path) -> None:
    """Write the checkpoints: of each name one with statistics and one, `-bare`, without; of `WIDE`; an adapter."""
    settings = PassSettings(tokens=64, seq_len=32, batch_size=1)
    for number, name in enumerate(NAMES):
        model = make_model("llama", 300 + number, **SIZES)
        save_checkpoint(model, given / f"{name}-bare", train_tokenizer())
        text = write_jsonl(given / f"{name}.jsonl", sentences(name if name in WORDS else "law", 20))
        save_expert(given / name, text, settings, model)
    (given / "base" / FILE_NAME).unlink()
    save_expert(given / WIDE, given / "law.jsonl", settings, make_model("qwen3", 600, **WIDE_SIZES))
    adapter = given / "adapter"
    adapter.mkdir()
    described = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(described))
    module, draw = "base_model.model.model.layers.0.self_attn.q_proj", torch.Generator().manual_seed(0)
    shapes = {"A": (2, 16), "B": (16, 2)}
    tensors = {f"{module}.lora_{k}.weight": torch.randn(shape, generator=draw) for k, shape in shapes.items()}
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def make_start(start: str, world: Path, given: Path) -> None:
    """Make the world that commands begin from, one of `_LINES`."""
    (world / "tmp").mkdir(parents=True)
    if start == "golden":
        (world / "home").mkdir()
        shutil.copy(FIRST_CATALOG, world / "home" / "catalog.sqlite")
    if start in ("empty", "golden"):
        return
    with Registry(world / "home") as opened:
        opened.add_base("base", given / "base")
        opened.add_expert("code", given / "code", alias="stable")
        opened.add_expert("math", given / "math")
        opened.compose(["code", "math"], world / "moe", Recipe(router="ridge") if start == "ridge" else None)
        if start == "several":
            opened.add_expert(WIDE, given / WIDE)
    if start in ("soup", "simoe"):
        trained = run(world, COMMANDS[f"train-{start}"].words(world, given))
        assert trained.exit_code == 0, trained.output
    if start == "adapted":
        line = Command("", "add-expert tuned GIVEN/adapter --base base --data GIVEN/law.jsonl PASS --sites counts")
        assert run(world, line.words(world, given)).exit_code == 0
    if start == "garbage":
        _litter(world / "home")


def _litter(home: Path) -> None:
    """Leave in a home what killed commands leave."""
    some = sorted((home / "arrays").glob("??/*"))[0]
    for digit in "0f":
        shutil.copytree(some, home / "arrays" / (digit * 2) / (digit * 64))
    (home / "arrays" / "00" / ("0" * 64) / "zarr.json").write_bytes(b"{")
    for name in ("partial/a.safetensors", "work/tmpa/model/x", "merged/merged-a/model/x", "cache/a.b.safetensors"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"x" * 5000)
    old = time.time() - 10 * 24 * 3600
    for path in (*home.glob("work/**/*"), *home.glob("merged/**/*")):
        os.utime(path, (old, old))
