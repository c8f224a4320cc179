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
import registry.training.trainer
from registry import PassSettings, Recipe, Registry
from registry.statistics.collect import collect_to
from registry.training import weight_trainer
from tests.models import make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl

GOLDEN = Path(__file__).parents[1] / "store" / "golden"
NAMES = ("base", "code", "math", "law", "german")
WIDE = "wide"
"""An expert of another architecture."""
SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,  # heads of 8 channels hold the evidence of all four experts
    "tie_word_embeddings": True,
}
_PASS = "--tokens 64 --seq-len 32 --batch-size 1"
_SOUP = "--tokens 96 --seq-len 16 --batch-size 2 --device cpu --dtype float32"
_TEXT = "--windows 2 --seq-len 16 --batch-size 1"


@dataclass(frozen=True)
class Command:
    """A command line, in which {world} and {given} stand for folders, and the place it begins from."""

    start: str
    line: str

    def words(self, world: Path, given: Path) -> list[str]:
        """Return the words after `reg --home HOME`."""
        return [word.format(world=world, given=given) for word in self.line.split()]


COMMANDS = {
    "first": Command("empty", "add-base base {given}/base --license mit --tag a=b --alias stable"),
    "add-base": Command("full", "add-base other {given}/law --tag a=b"),
    "add-pass": Command(
        "full",
        "add-expert law {given}/law-bare --data {given}/law.jsonl --keep-calibration --tag a=b --alias stable " + _PASS,
    ),
    "add-counts": Command(
        "full", "add-expert law {given}/law-bare --data {given}/law.jsonl --sites counts --keep-calibration " + _PASS
    ),
    "add-sampled": Command("full", "add-expert law {given}/law-bare " + _PASS),
    "add-adapter": Command("full", "add-expert merged {given}/adapter --base base --data {given}/law.jsonl " + _PASS),
    "add-carried": Command("full", "add-expert law {given}/law"),
    "tags": Command("full", "add-expert math {given}/math --tag a=b --tag c=d"),
    "alias": Command("full", "alias math@1 stable"),
    "unalias": Command("full", "alias code stable --delete"),
    "collect": Command("full", "collect {given}/law-bare --data {given}/law.jsonl --out {world}/out " + _PASS),
    "collect-counts": Command(
        "full", "collect {given}/law-bare --data {given}/law.jsonl --sites counts --out {world}/out " + _PASS
    ),
    "compose": Command("full", "compose --experts math,code --router ridge --lam 0.5 --force --out {world}/moe"),
    "context": Command("full", "compose --experts math,code --router context --force --out {world}/moe"),
    "dense": Command("full", "compose --experts math,code --to dense --out {world}/out"),
    "ensemble": Command("full", "compose --experts math,code --to ensemble --force --out {world}/moe"),
    "ensemble-trunk": Command(
        "full",
        "compose --experts math,code --to ensemble --routing prompt-perplexity --mixing logits --trunk regmean --force "
        "--out {world}/moe",
    ),
    "sums": Command(
        "full",
        "compose --experts math,code --trunk ties --combine sum --router ridge --gating softmax-topk --remote-code "
        "--force --out {world}/moe",
    ),
    "from-base": Command("full", "compose --from-base 2 --base base --force --out {world}/moe"),
    "fit": Command(
        "full",
        "compose --experts math,code --to dense --trunk task-arithmetic --fit {given}/law.jsonl --fit-tokens 1280 "
        "--fit-steps 3 --fit-device cpu --out {world}/out",
    ),
    "refine": Command("full", "compose --experts math,code --router ridge --refine 2 --out {world}/out"),
    "refine-mlp": Command("full", "compose --experts math,code --router ridge --refine-mlp --force --out {world}/moe"),
    "refine-trunk": Command("full", "compose --experts math,code --refine-trunk --force --out {world}/moe"),
    "opt-out": Command("full", "opt-out math --yes"),
    "purge": Command("full", "opt-out math --purge --yes --receipt {world}/receipt.json"),
    "gc": Command("garbage", "gc"),
    "upgrade": Command("golden", "db upgrade"),
    "train-router": Command(
        "ridge",
        "train-router {world}/moe --data {given}/code.jsonl --data {given}/math.jsonl --steps 3 --batch-size 2 "
        "--seq-len 16 --device cpu --force --out {world}/out",
    ),
    "train": Command(
        "ridge",
        "train {world}/moe --train all --data {given}/code.jsonl --data {given}/math.jsonl --tokens 96 --seq-len 16 "
        "--batch-size 2 --device cpu --dtype float32 --force --out {world}/out",
    ),
    "proxy": Command(
        "full", "proxy {given}/law.jsonl --experts math,code --base base --documents 5 --device cpu --out {world}/out"
    ),
    "audit-extraction": Command(
        "full",
        "audit-extraction {world}/moe --data {given}/code.jsonl --documents 2 --prefix 4 --continued 4 --samples 2 "
        "--device cpu",
    ),
    "train-expert": Command(
        "full",
        "train-expert law --base base --data {given}/law.jsonl --coordinate --tokens 96 --seq-len 32 --batch-size 1 "
        "--device cpu --dtype float32",
    ),
    "train-soup": Command(
        "full",
        "train-soup soup --base base --domains {given}/code.jsonl --domains {given}/math.jsonl --experts 2 --rank 2 "
        + _SOUP,
    ),
    "instantiate": Command("soup", "instantiate soup --weights code=3,math=1 --force --out {world}/moe"),
    "instantiate-like": Command("soup", "instantiate soup --like {given}/law.jsonl --out {world}/out"),
    "instantiate-fit": Command(
        "soup",
        "instantiate soup --fit {given}/law.jsonl --fit-tokens 1280 --fit-steps 3 --fit-device cpu --out {world}/out",
    ),
    "train-simoe": Command(
        "full",
        "train-simoe sparse --base base --data {given}/code.jsonl --data {given}/math.jsonl --experts 2 "
        "--prompt-tokens 4 " + _SOUP,
    ),
    "simoe": Command("simoe", "compose --experts sparse-1,sparse-2 --to simoe --force --out {world}/moe"),
    "purge-simoe": Command("simoe", "opt-out sparse-1 --purge --yes --receipt {world}/receipt.json"),
    "hetero": Command(
        "several", "compose --experts code,wide --to hetero --routing-tokens 2 --force --out {world}/moe"
    ),
    "families": Command("several", "compose --experts code,wide --to ensemble --force --out {world}/moe"),
    "export": Command("full", "export math --out {world}/out"),
    "evaluate": Command(
        "full",
        "evaluate {world}/moe --data math={given}/math.jsonl --data code={given}/code.jsonl --oracle --baselines "
        + _TEXT,
    ),
    "methods": Command(
        "full", "evaluate --experts math,code --methods average,dume --data math={given}/math.jsonl " + _TEXT
    ),
    "continual": Command(
        "full",
        "continual --schedule code,math --data math={given}/math.jsonl --data code={given}/code.jsonl " + _TEXT,
    ),
    "reproduce": Command("full", "reproduce {world}/moe"),
    "reproduce-out": Command("full", "reproduce {world}/moe --out {world}/out"),
}
"""Name → every command that writes."""


def run(world: Path, words: Sequence[object]) -> Result:
    """Run one command of `reg` on the home of a world, in this process."""
    registry.statistics.forward_pass.SAVE_SECONDS = 0.0  # written down at every step
    registry.training.trainer.SAVE_SECONDS = weight_trainer.SAVE_SECONDS = 0.0
    tempfile.tempdir = str(world / "tmp")
    return CliRunner().invoke(cli.main.main, ["--home", str(world / "home"), *map(str, words)])


def make_given(given: Path) -> None:
    """Write the checkpoints: of each name one with statistics and one, `-bare`, without; of `WIDE`; an adapter."""
    tokenizer = train_tokenizer()
    for number, name in enumerate(NAMES):
        save_checkpoint(make_model("llama", 300 + number, **SMALL), given / f"{name}-bare", tokenizer)
        shutil.copytree(given / f"{name}-bare", given / name)
        if name != "base":
            text = write_jsonl(given / f"{name}.jsonl", sentences(name, 20))
            settings = PassSettings(tokens=64, seq_len=32, batch_size=1)
            collect_to(given / name, given / name, data=[text], settings=settings, keep_calibration=True)
    sizes = SMALL | {"hidden_size": 24, "head_dim": 8}
    wide = save_checkpoint(make_model("qwen3", 600, **sizes), given / WIDE, tokenizer)
    settings = PassSettings(tokens=64, seq_len=32, batch_size=1)
    collect_to(wide, wide, data=[given / "law.jsonl"], settings=settings, keep_calibration=True)
    adapter = given / "adapter"
    adapter.mkdir()
    described = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(described))
    module, draw = "base_model.model.model.layers.0.self_attn.q_proj", torch.Generator().manual_seed(0)
    shapes = {"A": (2, 16), "B": (16, 2)}
    tensors = {f"{module}.lora_{k}.weight": torch.randn(shape, generator=draw) for k, shape in shapes.items()}
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def make_start(start: str, world: Path, given: Path) -> None:
    """Make the world that commands begin from: empty, full, ridge, soup, simoe, several, garbage or golden."""
    (world / "tmp").mkdir(parents=True)
    if start == "golden":
        (world / "home").mkdir()
        shutil.copy(min(GOLDEN.glob("*.sqlite"), key=_age), world / "home" / "catalog.sqlite")
    if start in ("full", "ridge", "soup", "simoe", "several", "garbage"):
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
    if start == "garbage":
        _litter(world / "home")


def _age(path: Path) -> int:
    """Return how many revisions a golden database is from the first."""
    versions = Path(__file__).parents[2] / "migrations" / "versions"
    before = {
        file.name.partition("_")[0]: next(
            (line.split('"')[1] for line in file.read_text().splitlines() if line.startswith('down_revision = "')), None
        )
        for file in versions.glob("*_*.py")
    }
    age, revision = 0, before.get(path.stem)
    while revision is not None:
        age, revision = age + 1, before.get(revision)
    return age


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
