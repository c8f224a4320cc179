"""What `python -m tests.crash` does, all that the commands import being imported before anything forks."""

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

import alembic.command
import torch
import transformers.models.llama.modeling_llama
import transformers.models.mixtral.modeling_mixtral
import zarr
from transformers import AutoModelForCausalLM, AutoTokenizer

import registry.collecting
import registry.composing.compose
import registry.composing.refitting
import registry.evaluation.requests
import registry.receipt_checking
import registry.reproducing
import registry.training
import registry.withdrawing
from tests.crash.commands import COMMANDS
from tests.crash.filling import Mounted, fill_at_points, fill_file_system
from tests.crash.killing import Ground, kill_at_points
from tests.crash.randomly import kill_at_random

PRELOADED = (
    alembic.command,
    zarr,
    transformers.models.llama.modeling_llama,
    transformers.models.mixtral.modeling_mixtral,
    AutoModelForCausalLM,
    AutoTokenizer,
    registry,
)


SAMPLE = {
    "kill": argparse.Namespace(what="kill", commands=["add-carried", "compose", "purge"], tries=4),
    "full": argparse.Namespace(what="full", commands=["add-carried", "compose", "purge"], tries=1, seed=0),
    "random": argparse.Namespace(what="random", kills=3, seed=0),
}
"""What the ordinary tests do."""


def sweep(scratch: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Do what was asked, and return its figures."""
    torch.set_num_threads(1)  # no thread pool may exist when a process forks
    ground = Mounted(scratch) if asked.what == "mount" else Ground(scratch)
    if asked.what == "sample":
        return {name: _done(ground, one) for name, one in SAMPLE.items()}
    return _done(ground, asked)


def _done(ground: Ground, asked: argparse.Namespace) -> dict[str, Any]:
    """Do one kind of thing, and return its figures; whatever does not hold is an AssertionError."""
    began, figures = time.monotonic(), dict[str, dict[str, int]]()
    if asked.what == "random":
        total: dict[str, Any] = kill_at_random(ground, asked.kills, asked.seed)
    else:
        draw = random.Random(getattr(asked, "seed", 0))
        for name in asked.commands or list(COMMANDS):
            if asked.what == "kill":
                figures[name] = kill_at_points(ground, name, asked.tries)
            elif isinstance(ground, Mounted):
                figures[name] = fill_file_system(ground, name, asked.tries or 8, draw)
            else:
                figures[name] = fill_at_points(ground, name, asked.tries or 8, draw)
            print(name, figures[name], f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        keys = next(iter(figures.values()))
        total = {key: sum(one[key] for one in figures.values()) for key in keys} | {"commands": figures}
    return total | {"losses": 0, "dangling": 0, "seconds": round(time.monotonic() - began)}
