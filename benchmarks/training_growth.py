"""Growth of memory and time of the commands that train, tune and audit, with the model and the number of experts.

    python -m benchmarks.training_growth [--scratch DIR]

Each command runs in a process of its own, on one thread, over random Llamas of two sizes. It runs twice with as many
steps, on few tokens and on many: so the difference is that of the tokens alone, without imports, files and optimiser.
A training runs once more with its state saved in every step, as one of more than a minute does from time to time.
Writes TRAINING.md beside this file.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.alternating import MEGABYTE, Run, once
from benchmarks.random_experts import CONFIG, fill, make_checkpoint
from registry import Recipe, Registry
from registry.families import FAMILIES
from registry.io.dtypes import AUTO
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import compute_dtype

FOLDER = Path(__file__).parent
PAGE = FOLDER / "TRAINING.md"
WordsOf = Callable[[str], list[str]]
"""Returns the arguments of a run, from its name."""

SHAPE = {"vocab_size": 1024, "num_hidden_layers": 12, "head_dim": 64}
HIDDEN = {"small": 256, "large": 512}
EXPERTS = {"small": 2, "large": 4}
"""Experts of each registry; the growth with their number is measured on the large models."""

TOP_K, STEPS, WINDOW, FEW, MANY = 2, 3, 64, 1, 8
"""Experts of a token; steps of a training; tokens of a window; windows of a batch."""

DOCUMENTS, LETTERS = (16, 256), 30
"""Public documents, few and many, and letters of each."""

TRIED, SAMPLES, PREFIX, CONTINUED = (2, 12), 4, 16, 32
"""Of the audit: documents, few and many; continuations of each; tokens that are given, and continued."""

SAVING = (
    "from registry.training import state\n"
    "assert state.SAVE_SECONDS\n"
    "state.SAVE_SECONDS = 0.0\n"
    "from cli.main import main\n"
    "main(prog_name='reg')"
)
"""A program that is reg, but saves the state of a training in every step."""


@dataclass(frozen=True)
class Point:
    """One command on one model.

    Attributes:
        command: words that name it.
        experts: of the composition, or that are compared with public text; 0 for a model alone.
        weights: of the model in memory.
        active: weights that a token runs through.
        few: the run on few tokens.
        many: the run on many; None where only the growth of the former counts.
        tokens: that the latter runs through the model beyond those of the former.
        at_once: the same for the tokens that are in memory at once; 0 if their number is that of the former.
        saving: the run on few tokens that saves its state.
    """

    command: str
    experts: int
    weights: int
    active: int
    few: Run
    many: Run | None
    tokens: int
    at_once: int
    saving: Run | None = None

    @property
    def per_token(self) -> float:
        """Processor time per token and weight that it runs through, in seconds."""
        return (_processor(self.many) - _processor(self.few)) / (self.tokens * self.active)

    @property
    def memory_per_token(self) -> float | None:
        """Bytes for each token that is in memory at once; None where that was not measured."""
        return None if self.at_once == 0 else (_peak(self.many) - _peak(self.few)) / self.at_once

    def line(self) -> str:
        """Return its row of the table of peaks."""
        peaks = (_megabytes(run) for run in (self.few, self.many, self.saving))
        experts = self.experts or "–"
        return f"| {self.command} | {self.weights / 1e6:.1f}M | {experts} | {' | '.join(peaks)} |"


@dataclass(frozen=True)
class Growth:
    """The growth of one command between points.

    Attributes:
        small: on the small model.
        large: on the large one, with as many experts.
        more: on the large one with more experts, for a command that has them.
    """

    small: Point
    large: Point
    more: Point | None = None

    @property
    def per_weight(self) -> float:
        """Bytes per weight as the model grows."""
        return (_peak(self.large.few) - _peak(self.small.few)) / (self.large.weights - self.small.weights)

    @property
    def fixed(self) -> float:
        """Bytes that do not grow with the weights."""
        return _peak(self.large.few) - self.per_weight * self.large.weights

    def line(self, reference: float) -> str:
        """Return its row of the table of slopes.

        Args:
            reference: the time per token and weight that others are compared with.
        """
        small, large, more = self.small, self.large, self.more
        saving = None
        if large.saving is not None and small.saving is not None:
            saving = (_peak(large.saving) - _peak(small.saving)) / (large.weights - small.weights)
        cells = [
            f"{self.per_weight:.1f}",
            "–" if saving is None else f"{saving:.1f}",
            "–" if more is None else f"{_added_per_weight(large, more):.1f}",
            f"{self.fixed / MEGABYTE:,.0f}",
            "–" if large.memory_per_token is None else f"{large.memory_per_token / 1e3:,.0f}",
            f"{large.per_token / reference:.2f}",
            f"{large.per_token / small.per_token:.2f}",
        ]
        return f"| {large.command} | {' | '.join(cells)} |"


class Bench:
    """A registry of random experts of one size, and the commands over it.

    Args:
        scratch: a folder for it; created.
        size: a key of `HIDDEN`.
    """

    def __init__(self, scratch: Path, size: str) -> None:
        scratch.mkdir()
        hidden = HIDDEN[size]
        heads = hidden // SHAPE["head_dim"]
        shape = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": heads}
        self.scratch, self.size = scratch, size
        self.home, self.names = fill(scratch, EXPERTS[size], **SHAPE, **shape, num_key_value_heads=heads)
        self.base = make_checkpoint(scratch / "base", 0)
        self.tokenizer = load_tokenizer(self.base)
        family = FAMILIES["llama"]
        architecture = family.architecture(CONFIG.to_dict())
        self.mlps, self.trunk = (
            sum(torch.Size(shape).numel() for shape in shapes.values())
            for shapes in (family.mlp_shapes(architecture), family.trunk_shapes(architecture))
        )
        self.text = scratch / "data.txt"
        self.text.write_text(_letters(30 * WINDOW // 2, 0), encoding="utf-8")  # fewer windows than are held out at most

    def expert(self, trunk: str) -> Point:
        """Return the point of reg train-expert."""
        words = ["--base", "base", "--data", str(self.text), "--trunk", trunk]
        return self._trained(f"train-expert --trunk {trunk}", 0, lambda run: [f"{trunk}-{run}", *words])

    def mixture(self, part: str, experts: int) -> Point:
        """Return the point of reg train."""
        folder = self.scratch / f"moe-{experts}"
        if not folder.exists():
            with Registry(self.home) as registry:
                recipe = Recipe(trunk="mean", router="random", top_k=TOP_K)
                registry.compose(self.names[:experts], folder, recipe)
        words = [str(folder), "--train", part, "--data", str(self.text), "--force", "--out", str(self.scratch / "out")]
        is_timed = experts == EXPERTS["small"]
        return self._trained(f"train --train {part}", experts, lambda run: words, is_timed=is_timed)

    def simoe(self, experts: int) -> Point:
        """Return the point of reg train-simoe."""
        words = ["--base", "base", "--data", str(self.text), "--experts", str(experts)]
        return self._together("train-simoe", experts, words)

    def soup(self, experts: int) -> Point:
        """Return the point of reg train-soup."""
        domains = [word for name in ("one", "two") for word in ("--domains", f"{name}={self.text}")]
        return self._together("train-soup", experts, ["--base", "base", *domains, "--experts", str(experts)])

    def _together(self, command: str, experts: int, words: Sequence[str]) -> Point:
        """Return the point of a training of experts that share weights; each is as large as the model."""
        is_timed = experts == EXPERTS["small"]
        point = self._trained(command, 0, lambda run: [f"{command}-{experts}-{run}", *words], is_timed=is_timed)
        return replace(point, experts=experts)

    def proxy(self, experts: int) -> Point:
        """Return the point of reg proxy."""
        names, tokens = ",".join(self.names[:experts]), list[int]()
        runs: list[Run] = []
        for count in DOCUMENTS[: 1 + (experts == EXPERTS["small"])]:
            texts, file = [_letters(LETTERS, number) for number in range(count)], self.scratch / "public.jsonl"
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
            tokens.append(sum(len(self.tokenizer(text)["input_ids"]) + 1 for text in texts))  # and a start token each
            out = self.scratch / "proxy"
            shutil.rmtree(out, ignore_errors=True)
            runs.append(self._run("proxy", [str(file), "--experts", names, "--base", "base", "--out", str(out)]))
        more = tokens[-1] - tokens[0]  # each runs twice: for the statistics of public text, and for its document
        weights = self.trunk + self.mlps
        many = runs[1] if len(runs) > 1 else None
        return Point("proxy", experts, weights, weights, runs[0], many, 2 * more, more)

    def audit(self) -> Point:
        """Return the point of reg audit-extraction."""
        file = self.scratch / "documents.jsonl"
        rows = (json.dumps({"text": _letters(PREFIX + CONTINUED, number)}) + "\n" for number in range(max(TRIED)))
        file.write_text("".join(rows), encoding="utf-8")
        how = ["--samples", str(SAMPLES), "--prefix", str(PREFIX), "--continued", str(CONTINUED)]
        words = [str(self.base), "--data", str(file), *how]
        few, many = (self._run("audit-extraction", [*words, "--documents", str(count)]) for count in TRIED)
        weights, tokens = self.trunk + self.mlps, (TRIED[1] - TRIED[0]) * SAMPLES * CONTINUED
        return Point("audit-extraction", 0, weights, weights, few, many, tokens, 0)

    def _trained(self, command: str, experts: int, words: WordsOf, *, is_timed: bool = True) -> Point:
        """Return the point of a training.

        Args:
            command: its words.
            experts: of the composition.
            words: returns the arguments of a run, from its name.
            is_timed: run it on many tokens too.
        """
        runs: dict[str, Run] = {}
        for name, windows in (("few", FEW), ("saving", FEW), *((("many", MANY),) if is_timed else ())):
            tokens = STEPS * windows * WINDOW
            how = ["--tokens", str(tokens), "--seq-len", str(WINDOW), "--batch-size", str(windows), "--dtype"]
            given = [*words(name), *how, "float32", "--seed", str(len(runs))]
            runs[name] = self._run(command.partition(" ")[0], given, saving=name == "saving")
        more = (MANY - FEW) * WINDOW
        weights, active = (self.trunk + self.mlps * max(1, count) for count in (experts, min(experts, TOP_K)))
        return Point(
            command, experts, weights, active, runs["few"], runs.get("many"), STEPS * more, more, runs["saving"]
        )

    def _run(self, command: str, words: Sequence[str], *, saving: bool = False) -> Run:
        program = ["-c", SAVING] if saving else ["-m", "cli.main"]
        given = [sys.executable, *program, "--home", str(self.home), command, *words, "--device", "cpu", "--quiet"]
        found = once(given, {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)})
        print(f"{self.size}: reg {command}: {found.seconds:.0f} s, {_megabytes(found)}", flush=True)
        return found


def measured(scratch: Path) -> list[Growth]:
    """Return the growth of every command."""
    small, large = (Bench(scratch / size, size) for size in HIDDEN)
    few, many = EXPERTS["small"], EXPERTS["large"]
    found = [Growth(small.expert(trunk), large.expert(trunk)) for trunk in ("free", "frozen")]
    for part in ("all", "routers"):
        found.append(Growth(small.mixture(part, few), large.mixture(part, few), large.mixture(part, many)))
    found.append(Growth(small.simoe(few), large.simoe(few), large.simoe(many)))
    found.append(Growth(small.soup(few), large.soup(few), large.soup(many)))
    found.append(Growth(small.proxy(few), large.proxy(few), large.proxy(many)))
    return [*found, Growth(small.audit(), large.audit())]


def page(found: Sequence[Growth], seconds: float) -> str:
    """Return TRAINING.md.

    Args:
        found: the growth of each command; times are compared with the first.
        seconds: of processor time that all of it took.
    """
    reference = found[0].large.per_token
    points = [point for growth in found for point in (growth.small, growth.large, growth.more) if point is not None]
    dtype = compute_dtype(AUTO, "bfloat16", "cpu")
    sizes = " and ".join(f"{growth.weights / 1e6:.1f}M" for growth in (found[0].small, found[0].large))
    audited = f"{SAMPLES} continuations of each of {TRIED[0]} documents, and of {TRIED[1]}"
    columns = (
        "command",
        "bytes per weight",
        "saved",
        "bytes per weight of added experts",
        "fixed MB",
        "kB per token",
        "time",
        "growth of time",
    )
    few, many = FEW * WINDOW, MANY * WINDOW
    return f"""# Memory and time of training

Written by `python -m benchmarks.training_growth`, not by hand. Random Llamas of {SHAPE["num_hidden_layers"]} layers in
bfloat16, of {sizes} weights, three quarters of them in MLPs. Each command ran in
a process of its own, on one thread of a processor. All of it took {seconds / 60:.0f} min of processor time.
torch {torch.__version__}.

- Trainings: {STEPS} steps in float32, of {few} tokens and of {many}. Mixtures have {TOP_K} experts per token.
- Saved: the same, of few tokens, with the state saved in every step. Trainings of more than a minute save it once a
  minute.
- `reg proxy`: {DOCUMENTS[0]} public documents and {DOCUMENTS[1]}.
- `reg audit-extraction`: {audited}, one document at a time.
- The last two commands compute in {dtype} here.

## Growth

| {" | ".join(columns)} |
|{"---|" * len(columns)}
{"".join(f"{growth.line(reference)}{chr(10)}" for growth in found)}
- Bytes per weight: of the whole model in memory, from the small model to the large one; of `reg train-simoe` and
  `reg train-soup`, of one expert's model. A weight that trains takes 16 in float32: the weight, its gradient and two
  moments. Of added experts: on the large model, from
  {EXPERTS["small"]} experts to {EXPERTS["large"]}.
- Fixed: what is left at no weights, for the program and its libraries.
- kB per token: of a batch of the large model; of `reg proxy`, of all public text, of which at most 24,576 tokens are in
  memory.
- Time: processor time for one more token, divided by the weights that it runs through, against that of
  `{found[0].large.command}`, all on the large model. Its growth: from the small model to the large one; 1 where
  time grows as the weights do, below 1 where it grows less.

## Peak memory

| command | weights | experts | few tokens | many tokens | saved |
|---|---|---|---|---|---|
{"".join(f"{point.line()}{chr(10)}" for point in points)}"""


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, help="where its folders are made; default: the system's place")
    with tempfile.TemporaryDirectory(prefix="reg-bench-", dir=parser.parse_args().scratch) as scratch:
        found = measured(Path(scratch))
    text = page(found, sum(os.times()[:4]))  # of this process and of those it waited for
    print(text)
    PAGE.write_text(text, encoding="utf-8")


def _letters(count: int, seed: int) -> str:
    """Return text of so many letters, each at least one token."""
    return " ".join(random.Random(seed).choices("acdfgjklmpqrsuvwxyz", k=count))


def _added_per_weight(before: Point, after: Point) -> float:
    """Return the bytes per weight of the experts that one point has more, whether the model grows by them or not."""
    added = after.weights - before.weights or (after.experts - before.experts) * after.weights
    return (_peak(after.few) - _peak(before.few)) / added


def _peak(run: Run | None) -> int:
    assert run is not None
    assert run.peak is not None
    return run.peak


def _processor(run: Run | None) -> float:
    assert run is not None
    assert run.processor is not None
    return run.processor


def _megabytes(run: Run | None) -> str:
    return "–" if run is None else f"{_peak(run) / MEGABYTE:,.0f} MB"


if __name__ == "__main__":
    main()
