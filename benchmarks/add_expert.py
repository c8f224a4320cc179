"""Registering an expert of 135M parameters in bfloat16, as a cold command, in the dtype that `--dtype auto` chooses.

It is compared with the checkpoint's own dtype. Where the processor has fast products of bfloat16 both are the same.
"""

import sys
from functools import partial
from pathlib import Path

from benchmarks import random_experts
from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.mergekit import SHAPE
from registry import Registry
from registry.maths.gram import has_int8

NAME, TOKENS = "late", 4_096
TARGET = 0.2


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparison; a target is set where products of bfloat16 are slow."""
    for key, value in SHAPE.items():
        setattr(random_experts.CONFIG, key, value)
    folder = random_experts.make_checkpoint(scratch / "checkpoint", 0)
    text, home = scratch / "text.txt", scratch / "home"
    text.write_text("to be or not to be that is the question " * 4000)
    words = [str(Path(sys.executable).with_name("reg")), "--home", str(home), "add-expert", NAME, str(folder)]
    words += ["--data", str(text), "--tokens", str(TOKENS), "--seq-len", "256"]
    gone = partial(forget, home)
    return [
        alternate(
            "whole `reg add-expert` against `--dtype bfloat16`",
            words,
            [*words, "--dtype", "bfloat16"],
            1,
            target=None if has_int8("cpu") else TARGET,
            warm_up=0,
            setup=Setup(before_ours=gone, before_other=gone),
            note=f"135M, bfloat16, {TOKENS:,} tokens",
        )
    ]


def forget(home: Path) -> None:
    """Withdraw the expert, if it is registered."""
    with Registry(home) as registry:
        if any(version.name == NAME for version in registry.versions()):
            registry.opt_out(NAME, purge=True)


if __name__ == "__main__":
    run(measure)
