"""One mixture of three experts, and a fourth added to it, against mergekit-moe 0.1.5 (`hidden` gates), cold commands.

    python -m benchmarks.mergekit [--scratch DIR]

mergekit gets an environment of its own, `build/mergekit-env`, beside this one's torch and transformers. The experts
have the shape of SmolLM-135M, random weights in bfloat16 and a small tokenizer. Both write a Mixtral folder. mergekit's
gates are the base model's hidden states of 8 prompts an expert; ours are solved from the statistics that each expert
was registered with. So ours reads the experts' text once, when they are registered, and mergekit reads its prompts each
time: the claim about the fourth expert counts our registration too.

Where `../shared` has trained experts and their text, the two mixtures of those are scored as well: perplexity of each
domain, ours and mergekit's. mergekit's prompts are the first 600 characters of 8 documents of each domain.
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

from benchmarks import compose_memory
from benchmarks.alternating import Comparison, alternate, run
from registry import Registry, TestSettings

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
TOKENS = (24_576, 4_096)
"""Calibration tokens of the fourth expert: the default, and what loses 0.2 of the score (reference table)."""

PROMPTS, CHARACTERS = 8, 600
DOMAINS = ("code", "math", "literature", "german", "biomed")
ROUNDS = 3
REG = str(Path(sys.executable).with_name("reg"))


def installed() -> Path:
    """Return mergekit's command, in its environment, made if absent."""
    command = ENVIRONMENT / "bin" / "mergekit-moe"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(ENVIRONMENT)], check=True)
        packages = ENVIRONMENT / "lib" / Path(sysconfig.get_path("purelib")).parent.name / "site-packages"
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "beside.pth").write_text("".join(f"{path}\n" for path in shared))
        pip = [sys.executable, "-m", "pip", "--python", str(ENVIRONMENT / "bin" / "python"), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", f"mergekit=={VERSION}", "immutables"], check=True)
        subprocess.run(
            [*pip, "accelerate", "peft", "pydantic", "pyyaml"], check=True
        )  # where they are not here already
    return command


def configuration(file: Path, base: Path, prompts: dict[Path, list[str]], top_k: int) -> Path:
    """Write what mergekit is asked for; it is JSON, which is YAML too."""
    experts = [{"source_model": str(folder), "positive_prompts": given} for folder, given in prompts.items()]
    asked = {"base_model": str(base), "gate_mode": "hidden", "dtype": "bfloat16", "experts_per_token": top_k}
    file.write_text(json.dumps(asked | {"experts": experts}))
    return file


def speed(scratch: Path, mergekit: Path) -> list[Comparison]:
    """Return how long a mixture takes and how much memory, and how long a fourth expert."""
    for key, value in SHAPE.items():
        setattr(compose_memory.CONFIG, key, value)
    names = ("base", *EXPERTS, LATE)
    folders = {name: compose_memory.make_checkpoint(scratch / name, seed) for seed, name in enumerate(names)}
    text = scratch / "text.txt"
    text.write_text("to be or not to be that is the question " * 4000)
    home, ours, other = scratch / "home", scratch / "ours", scratch / "other"
    reg = [REG, "--home", str(home)]
    options = ["--data", str(text), "--seq-len", "256", "--allow-unrelated"]
    subprocess.run([*reg, "add-base", "base", str(folders["base"])], check=True, stdout=subprocess.DEVNULL)
    for name in EXPERTS:
        words = [*reg, "add-expert", name, str(folders[name]), *options, "--tokens", "1024"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    prompts = {folders[name]: [f"{name} {n} to be or not to be " * 24 for n in range(PROMPTS)] for name in names[1:]}
    three = configuration(scratch / "three.yml", folders["base"], dict(list(prompts.items())[:3]), 2)
    four = configuration(scratch / "four.yml", folders["base"], prompts, 2)
    gone = {"before_other": partial(shutil.rmtree, other, True)}
    compose = [*reg, "compose", "--top-k", "2", "--out", str(ours), "--experts"]
    note = "3 × 135M, bfloat16"
    one = alternate(
        "one mixture against mergekit-moe",
        [*compose, ",".join(EXPERTS)],
        [str(mergekit), str(three), str(other), "--quiet"],
        ROUNDS,
        target=0.5,
        before_ours=partial(shutil.rmtree, ours, True),
        note=note,
        **gone,
    )
    found = [one, one.memory("peak memory of one mixture against mergekit-moe", target=0.5)]

    def forget() -> None:
        shutil.rmtree(ours, True)
        with Registry(home) as registry:
            if any(version.name == LATE for version in registry.versions()):
                registry.opt_out(LATE, purge=True)

    for tokens in TOKENS:
        both = scratch / "both.sh"
        add = [*reg, "add-expert", LATE, str(folders[LATE]), *options, "--tokens", str(tokens)]
        both.write_text(f"set -e\n{shlex.join(add)}\n{shlex.join([*compose, ','.join(names[1:])])}\n")
        found.append(
            alternate(
                "a fourth expert, registered and composed, against mergekit-moe of four",
                ["sh", str(both)],
                [str(mergekit), str(four), str(other), "--quiet"],
                1 if tokens == TOKENS[0] else ROUNDS,
                target=0.5,
                warm_up=0,
                before_ours=forget,
                note=f"{tokens:,} calibration tokens",
                **gone,
            )
        )
    return found


def quality(scratch: Path, mergekit: Path) -> list[Comparison]:
    """Return the perplexity of each domain of the two mixtures of trained experts; none where these are not there."""
    if not (SHARED / "experts" / "base").is_dir():
        return []
    prompts = {SHARED / "experts" / name: _texts(SHARED / "corpora" / name / "train.jsonl.gz") for name in DOMAINS}
    asked = configuration(scratch / "trained.yml", SHARED / "experts" / "base", prompts, 1)
    other, ours = scratch / "trained-other", scratch / "trained-ours"
    subprocess.run([str(mergekit), str(asked), str(other), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    with Registry(scratch / "trained-home") as registry:
        registry.add_base("base", SHARED / "experts" / "base")
        for name in DOMAINS:
            data = [SHARED / "corpora" / name / "train.jsonl.gz"]
            registry.add_expert(name, SHARED / "experts" / name, data=data)
        registry.compose(DOMAINS, ours)
        data = {name: [SHARED / "corpora" / name / "test.jsonl.gz"] for name in DOMAINS}
        rows = registry.evaluate([ours, other], data, TestSettings(windows=24))
    mine, theirs = rows[0], rows[1]
    found = [
        Comparison(f"perplexity, {name}", (mine.perplexity[name],), (theirs.perplexity[name],), 1.0, "")
        for name in DOMAINS
    ]
    if mine.average is not None and theirs.average is not None:
        scores = (theirs.average,), (mine.average,)
        found.append(Comparison("normalised score, mergekit's against ours", *scores, 1.0, "", note="other is ours"))
    return found


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    mergekit = installed()
    return [*speed(scratch, mergekit), *quality(scratch, mergekit)]


def _texts(file: Path) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        documents = [json.loads(line)["text"] for line in lines]
    step = len(documents) // PROMPTS
    return [document[:CHARACTERS] for document in documents[::step][:PROMPTS]]


if __name__ == "__main__":
    run(measure)
