"""One mixture of three experts, and a fourth added to it, against mergekit-moe 0.1.5 (`hidden` gates), cold commands.

    python -m benchmarks.mergekit [--scratch DIR]        REG_SHARED=DIR: a folder with `experts` and `corpora`

mergekit gets an environment of its own, `build/mergekit-env`, made once: mergekit and immutables from PyPI without what
they ask for (they pin older torch and transformers), and beside them, by a .pth file, this program's own packages:
torch, transformers, tokenizers, safetensors, accelerate, peft, pydantic, PyYAML, click, tqdm, all of which it imports.
mergekit-moe 0.1.5 needs nothing else, and no changes, to run with transformers 5. Where there is no PyPI to fetch it
from, the table says so.

The experts have the shape of SmolLM-135M, random weights in bfloat16 and a small tokenizer. Both write a Mixtral
folder. mergekit's gates are the base model's hidden states of 8 prompts an expert; ours are solved from the statistics
that each expert was registered with. So ours reads the experts' text once, when they are registered, and mergekit reads
its prompts each time: the claim about the fourth expert counts our registration too.

Of trained experts and their text, where there are some (`REG_SHARED`, by default the folder `shared` beside this
repository), the two mixtures are scored as well: perplexity of each domain, ours and mergekit's. mergekit's prompts are
the first 600 characters of 8 documents of each domain.
"""

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

from benchmarks import random_experts
from benchmarks.alternating import SHORT, Comparison, Setup, alternate, once, run
from registry import PassSettings, Registry, TestSettings

VERSION = "0.1.5"
ENVIRONMENT = Path(__file__).parents[1] / "build" / "mergekit-env"
SHARED = Path(os.environ.get("REG_SHARED", Path(__file__).parents[2] / "shared"))
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
EXPERTS = ("code", "law", "math")
LATE = "poetry"
TOKENS = 24_576, 4_096
"""Calibration tokens of the fourth expert: the default, and what loses 0.2 of the score (reference table)."""

CLAIMS = (
    "one mixture against mergekit-moe",
    "peak memory of one mixture against mergekit-moe",
    "a fourth expert, registered and composed, against mergekit-moe of four",
)
DEFAULT = "one mixture by the default recipe against mergekit-moe"
FOURTH_BY_DEFAULT = "a fourth expert, registered and composed by the default recipe, against mergekit-moe of four"
QUALITY = "perplexity against mergekit-moe"

PROMPTS, CHARACTERS = 8, 600
DOMAINS = ("code", "math", "literature", "german", "biomed")
READ, WINDOWS = 8_192, 16
"""Calibration tokens of each trained expert; windows of each domain's test text."""

ROUNDS = 2
TARGETS = 0.35, 0.5, 0.5
"""Of the claims."""
BESIDE = ["accelerate", "peft", "pydantic", "pyyaml"]
REG = str(Path(sys.executable).with_name("reg"))


class _AbsentError(RuntimeError):
    """mergekit cannot be run here."""


def installed() -> Path:
    """Return mergekit's command, in its environment, made if absent.

    Raises:
        _AbsentError: it cannot be; the message says why.
    """
    command = ENVIRONMENT / "bin" / "mergekit-moe"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(ENVIRONMENT)], check=True)
        packages = ENVIRONMENT / "lib" / Path(sysconfig.get_path("purelib")).parent.name / "site-packages"
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "beside.pth").write_text("".join(f"{path}\n" for path in shared))
        pip = [sys.executable, "-m", "pip", "--python", str(ENVIRONMENT / "bin" / "python"), "install", "--quiet"]
        for words in (["--no-deps", f"mergekit=={VERSION}", "immutables"], BESIDE):  # the latter are mostly here
            done = subprocess.run([*pip, *words], capture_output=True, text=True)
            if done.returncode:
                shutil.rmtree(ENVIRONMENT)
                raise _AbsentError(f"pip cannot install {' '.join(words)}: {_last(done.stderr)}")
    try:
        once([str(command), "--help"])  # so that no run is the first one
    except RuntimeError as error:
        raise _AbsentError(f"mergekit-moe does not start: {_last(str(error))}") from error
    return command


def configuration(file: Path, base: Path, prompts: dict[Path, list[str]], top_k: int) -> Path:
    """Write what mergekit is asked for, in bfloat16; it is JSON, which is YAML too."""
    experts = [{"source_model": str(folder), "positive_prompts": given} for folder, given in prompts.items()]
    asked = {"base_model": str(base), "gate_mode": "hidden", "dtype": "bfloat16", "experts_per_token": top_k}
    file.write_text(json.dumps(asked | {"experts": experts}))
    return file


def speed(scratch: Path, mergekit: Path) -> list[Comparison]:
    """Return how long a mixture takes and how much memory, and how long a fourth expert."""
    for key, value in SHAPE.items():
        setattr(random_experts.CONFIG, key, value)
    names = ("base", *EXPERTS, LATE)
    folders = {name: random_experts.make_checkpoint(scratch / name, seed) for seed, name in enumerate(names)}
    text = scratch / "text.txt"
    text.write_text("to be or not to be that is the question " * 4000)
    home, ours, other = scratch / "home", scratch / "ours", scratch / "other"
    with Registry(home) as registry:
        registry.add_base("base", folders["base"])
        for name in EXPERTS:
            few = PassSettings(tokens=256, seq_len=128)
            registry.add_expert(name, folders[name], data=[text], settings=few, allow_unrelated=True)
    prompts = {folders[name]: [f"{name} {n} to be or not to be " * 24 for n in range(PROMPTS)] for name in names[1:]}
    three = configuration(scratch / "three.yml", folders["base"], dict(list(prompts.items())[:3]), 2)
    four = configuration(scratch / "four.yml", folders["base"], prompts, 2)
    gone = partial(shutil.rmtree, other, True)
    other_home = scratch / "other-home"  # where no product of the members is kept yet
    shutil.copytree(home, other_home)
    compose = [
        REG,
        "--home",
        str(home),
        "compose",
        "--router",
        "ridge",
        "--top-k",
        "2",
        "--out",
        str(ours),
        "--experts",
    ]
    default = [REG, "--home", str(other_home), "compose", "--out", str(ours), "--experts"]
    beside = partial(
        alternate,
        other=[str(mergekit), str(three), str(other), "--quiet"],
        rounds=1 if SHORT in os.environ else ROUNDS,
        setup=Setup(before_ours=partial(shutil.rmtree, ours, True), before_other=gone),
        note="3 × 135M, bfloat16; max: the first time, min: the second, with products of members kept",
        warm_up=0,
    )
    one = beside(CLAIMS[0], [*compose, ",".join(EXPERTS)], target=TARGETS[0])
    whole = beside(DEFAULT, [*default, ",".join(EXPERTS)])
    found = [one, one.memory(CLAIMS[1], target=TARGETS[1]), whole, whole.memory(f"peak memory of {DEFAULT}")]

    def forget(where: Path) -> None:
        shutil.rmtree(ours, True)
        with Registry(where) as registry:
            if any(version.name == LATE for version in registry.versions()):
                registry.opt_out(LATE, purge=True)

    def fourth(claim: str, where: Path, composing: list[str], tokens: int, target: float | None = None) -> Comparison:
        both, add = scratch / "both.sh", [REG, "--home", str(where), "add-expert", LATE, str(folders[LATE])]
        add += ["--data", str(text), "--allow-unrelated", "--tokens", str(tokens), "--seq-len", "256"]
        both.write_text(f"set -e\n{shlex.join(add)}\n{shlex.join([*composing, ','.join(names[1:])])}\n")
        return alternate(
            claim,
            ["sh", str(both)],
            [str(mergekit), str(four), str(other), "--quiet"],
            1,
            target=target,
            setup=Setup(before_ours=partial(forget, where), before_other=gone),
            note=f"{tokens:,} calibration tokens",
            warm_up=0,
        )

    for tokens in TOKENS[1:] if SHORT in os.environ else TOKENS:
        found.append(fourth(CLAIMS[2], home, compose, tokens, TARGETS[2]))
        found.append(fourth(FOURTH_BY_DEFAULT, other_home, default, tokens))
    return found


def quality(scratch: Path, mergekit: Path) -> list[Comparison]:
    """Return the perplexity of each domain of the two mixtures of trained experts."""
    if not (SHARED / "experts" / "base").is_dir():
        return [Comparison.missing(QUALITY, f"{SHARED} has no trained experts; name their folder with REG_SHARED")]
    texts = {name: SHARED / "corpora" / name / "train.jsonl.gz" for name in DOMAINS}
    prompts = {SHARED / "experts" / name: evenly(_documents(file)) for name, file in texts.items()}
    asked = configuration(scratch / "trained.yml", SHARED / "experts" / "base", prompts, 1)
    other, ours = scratch / "trained-other", scratch / "trained-ours"
    once([str(mergekit), str(asked), str(other), "--quiet"])
    with Registry(scratch / "trained-home") as registry:
        registry.add_base("base", SHARED / "experts" / "base")
        for name in DOMAINS:
            settings = PassSettings(tokens=READ)
            registry.add_expert(name, SHARED / "experts" / name, data=[texts[name]], settings=settings)
        registry.compose(DOMAINS, ours)
        data = {name: [file.with_name("test.jsonl.gz")] for name, file in texts.items()}
        mine, theirs = registry.evaluate([ours, other], data, TestSettings(windows=WINDOWS))[:2]
    note = f"{WINDOWS} windows; ours by its defaults, on {READ:,} tokens an expert"
    return [
        Comparison(f"{QUALITY}, {name}", (mine.perplexity[name],), (theirs.perplexity[name],), 1.0, "", note=note)
        for name in DOMAINS
    ]


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons; for a part that cannot be measured here, why."""
    found = []
    parts = ((speed, dict(zip(CLAIMS, TARGETS, strict=True))), (quality, {QUALITY: 1.0}))
    for part, claims in parts[: 1 if SHORT in os.environ else 2]:
        try:
            found += part(scratch, installed())
        except RuntimeError as error:  # a command of mergekit's that failed, say
            why = _last(str(error))
            found += [Comparison.missing(claim, why, target) for claim, target in claims.items()]
    return found


def _last(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")


def _documents(file: Path) -> list[str]:
    """Return the texts of a file of rows."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def evenly(texts: list[str]) -> list[str]:
    """Return the beginnings of as many texts as mergekit gets prompts, evenly over all."""
    return [text[:CHARACTERS] for text in texts[:: max(1, len(texts) // PROMPTS)][:PROMPTS]]


if __name__ == "__main__":
    run(measure)
