"""What compositions are worth at larger sizes: one recipe of training at three sizes, then the same rows for each.

    python -m benchmarks.larger_experts OUT [--shared ../shared] [--sizes 7M,28M,196M]

Every size is a Llama with random weights at first and the tokenizer of `SHARED/experts/base`. The base model trains on
the text of `general` and on a fifth of every domain's documents, each expert on the text of its domain, all weights:
the same text, tokens and learning rates at all sizes. A GPU is used if there is one, and the largest size is meant for
one. Bases, experts and groups of rows are processes side by side. Writes `OUT/larger.json` and, from it, a page:
`benchmarks/LARGER.md`, or `OUT/LARGER.md` with --sizes or --tokens. Goes on where it was interrupted.
"""

import argparse
import gzip
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from benchmarks.quality_parts import FIVE, Place, add, methods
from registry import ExpertTraining, Registry, TestSettings
from registry.evaluation.methods import DENSE, METHODS

SIZES: dict[str, dict[str, Any]] = {
    "7M": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8},
    "28M": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8},
    "196M": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16},
}
GENERAL = "general"
SLICE = 5
"""The base model reads one document in so many of each domain."""
BASE = ExpertTraining(trunk="free", tokens=20_480_000, batch_size=64, lr=6e-4)
EXPERT = ExpertTraining(trunk="free", tokens=819_200, batch_size=16)
GROUPS = (
    ("base", "experts", "average"),
    ("oracle-mean", "dume"),
    ("oracle", "regmean-paper", "regmean"),
    ("context",),
    ("oracle-context",),
    ("btm", "prompt-perplexity"),
)
"""Rows, in the groups of which each is a process."""
PAGE = Path(__file__).with_name("LARGER.md")
INTRODUCTION = """\
# What compositions are worth at larger sizes

Written by `python -m benchmarks.larger_experts`, not by hand. [docs/methods.md](../docs/methods.md) says what each
method is; `context` is the default of `reg compose`, and `regmean` is `--router ridge`. Scores are those of
[QUALITY.md](QUALITY.md): 100 · perplexity of the domain's own expert / perplexity of the model, on 48 windows of 256
tokens of each domain.

One recipe at every size, so that nothing but the size differs. The models are Llamas with a vocabulary of 4,096 tokens,
that of QUALITY.md. A base model learns from random weights, in 1,250 steps of 64 windows of 256 tokens, on general
English and a fifth of every domain's documents. Each expert takes 200 steps of 16 windows more on its domain, all
weights trained. The text is that of QUALITY.md. The experts are registered with 24,576 tokens of it. The smallest are
not the models of QUALITY.md, but others of their shape.

| size | weights | hidden size | layers | width of an MLP |
| --- | ---: | ---: | ---: | ---: |
| 7M | 6,819,072 | 256 | 6 | 768 |
| 28M | 27,795,968 | 512 | 8 | 1,408 |
| 196M | 197,166,080 | 1,024 | 16 | 2,816 |
"""


def main() -> None:
    """Measure every size, or do the part of one that another process of this file asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--tokens", type=int, default=BASE.tokens, help="of the base model; default: %(default)s")
    parser.add_argument("--part", nargs=2, metavar=("SIZE", "NAME"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    out, shared = given.out.absolute(), given.shared.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if given.part:
        size, name = given.part
        _keep(out / size / "results" / f"{name}.json", _part(name, size, given.tokens, out / size, shared))
        return
    command = [sys.executable, "-m", "benchmarks.larger_experts", *sys.argv[1:], "--part"]
    sizes = given.sizes.split(",")
    for stage in (["base"], FIVE, ["register"], [f"rows-{number}" for number in range(len(GROUPS))]):
        _together(command, [(size, name) for size in sizes for name in stage], out)
    rows = {
        size: [row for path in _results(out, size) for row in json.loads(path.read_text())["rows"]] for size in sizes
    }
    found = {"machine": _machine(), "rows": rows}
    (out / "larger.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    is_whole = (given.sizes, given.tokens) == (",".join(SIZES), BASE.tokens)
    path = PAGE if is_whole else out / PAGE.name
    path.write_text(page(found))
    print(f"wrote {path}")


def page(found: dict[str, Any]) -> str:
    """Return the page of what was found.

    Args:
        found: `machine`, a sentence, and `rows`: size → rows as `reg evaluate --json` has them.
    """
    tables = {size: {row["name"].split("@")[0]: row for row in rows} for size, rows in found["rows"].items()}
    names = sorted(next(iter(tables.values())), key=_rank)
    lines = [INTRODUCTION, found["machine"], "", "## Mean over the five domains", "", *_head([*tables])]
    lines += [_cells(name, [f"{table[name]['average']:.2f}" for table in tables.values()]) for name in names]
    for size, table in tables.items():
        lines += ["", f"## {size}", "", *_head([*FIVE, "average", "95% interval"])]
        for name in names:
            row = table[name]
            scores = [*(row["score"][domain] for domain in FIVE), row["average"]]
            interval = "{:.2f} to {:.2f}".format(*row["average_interval"]) if row["average_interval"] else ""
            lines.append(_cells(name, [*(f"{score:.2f}" for score in scores), interval]))
        own = ", ".join(f"{name} {table[f'expert {name}']['perplexity'][name]:.2f}" for name in FIVE)
        lines += ["", f"Perplexities of the experts on their own domains: {own}."]
    return "\n".join(lines) + "\n"


def _rank(name: str) -> int:
    """Return where a row stands: dense models, then the others in the order of all methods."""
    dense = {"base": 0, "expert": 1, "average": 2}.get(name.split()[0])
    return dense if dense is not None else len(DENSE) + list(METHODS).index(name)


def _head(columns: Sequence[str]) -> list[str]:
    return [f"|  | {' | '.join(columns)} |", f"| --- | {' | '.join('---:' for _ in columns)} |"]


def _cells(name: str, cells: Sequence[str]) -> str:
    label = {"base base": "base", "context": "**context**"}.get(name, name)
    return f"| {label} | {' | '.join(cells)} |"


def _machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the processor"
    return (
        f"Trained, registered and scored on {device}, with Python {platform.python_version()},\n"
        f"torch {torch.__version__}, transformers {transformers.__version__}."
    )


def _results(out: Path, size: str) -> Sequence[Path]:
    return sorted((out / size / "results").glob("rows-*.json"))


def _together(command: Sequence[str], parts: Sequence[tuple[str, str]], out: Path) -> None:
    """Run parts beside each other, those that are not there yet; end the program if one fails."""
    missing = [part for part in parts if not (out / part[0] / "results" / f"{part[1]}.json").exists()]
    running = [(part, subprocess.Popen([*command, *part])) for part in missing]
    if failed := [" ".join(part) for part, process in running if process.wait()]:
        sys.exit(f"failed: {', '.join(failed)}; the others are kept, and the same command goes on")


def _keep(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    partial.replace(path)
    for row in found.get("rows", ()):
        print(path.parts[-3], row["name"], json.dumps(row), flush=True)
    print(path.parts[-3], path.stem, f"{found['seconds']:.1f} s", flush=True)


def _part(name: str, size: str, tokens: int, folder: Path, shared: Path) -> dict[str, Any]:
    """Do one part, and return what it found and how long it took."""
    place = _place(folder, shared)
    started = time.monotonic()
    found: dict[str, Any] = {}
    if name == "base":
        _make_base(size, tokens, place, shared)
    elif name in FIVE:
        _train(name, place.checkpoint("base"), place.text(name, "train"), EXPERT, place.checkpoint(name), folder)
    elif name == "register":
        with Registry(place.home) as registry:
            for number in range(len(FIVE) + 1):
                begun = time.monotonic()
                add(registry, place, FIVE[:number])
                found[("base", *FIVE)[number]] = time.monotonic() - begun
    else:
        found = methods(place, place.home, FIVE, GROUPS[int(name.removeprefix("rows-"))])
    return {**found, "seconds": time.monotonic() - started}


def _place(folder: Path, shared: Path) -> Place:
    """Return where the models of a size are, with the text beside them."""
    (folder / "experts").mkdir(parents=True, exist_ok=True)
    if not (folder / "corpora").exists():
        (folder / "corpora").symlink_to(shared / "corpora")
    return Place(folder, folder / "home", folder / "sampled", None, TestSettings(windows=48, dtype="float32"))


def _make_base(size: str, tokens: int, place: Place, shared: Path) -> None:
    """Train the base model of a size from random weights."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "experts" / "base")
    config = LlamaConfig(
        **SIZES[size],
        num_key_value_heads=SIZES[size]["num_attention_heads"] // 2,
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    random = place.shared / "random"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    print(size, f"{sum(part.numel() for part in model.parameters()):,} parameters", flush=True)
    model.save_pretrained(random)
    tokenizer.save_pretrained(random)
    data = [*place.text(GENERAL, "train"), *(_slice(place, name) for name in FIVE)]
    _train("base", random, data, replace(BASE, tokens=tokens), place.checkpoint("base"), place.shared)


def _slice(place: Place, name: str) -> Path:
    """Write one document in `SLICE` of a domain's training text, and return the file."""
    path = place.shared / f"slice-{name}.jsonl"
    with gzip.open(place.text(name, "train")[0], "rt", encoding="utf-8") as lines:
        path.write_text("".join(line for number, line in enumerate(lines) if number % SLICE == 0), encoding="utf-8")
    return path


def _train(name: str, base: Path, data: Sequence[Path], settings: ExpertTraining, out: Path, folder: Path) -> None:
    with Registry(folder / f"training-{name}") as registry:
        trained = registry.train_expert(name, base, data, settings, out=out)
    print(folder.name, name, f"loss {trained.losses.before:.3f} → {trained.losses.after:.3f}", flush=True)


if __name__ == "__main__":
    main()
