"""What `python -m tests.crash` does, all that the commands import being imported before anything forks."""

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.commands import COMMANDS
from tests.crash.filling import Mounted, fill
from tests.crash.killing import Ground, kill_at_points
from tests.crash.randomly import kill_at_random
from tests.preloaded import before_forks

SAMPLE = {
    "kill": argparse.Namespace(what="kill", commands=["add-carried", "purge"], tries=2),
    "full": argparse.Namespace(what="full", commands=["compose"], tries=2, seed=0),
    "random": argparse.Namespace(what="random", kills=1, seed=0),
}
"""What the ordinary tests do."""


def sweep(scratch: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Do what was asked, and return its figures."""
    before_forks()
    ground = Mounted(scratch) if asked.what == "mount" else Ground(scratch)
    parts = SAMPLE if asked.what == "sample" else {asked.what: asked}
    try:
        return {what: _done(ground, one) for what, one in parts.items()}
    finally:
        ground.clear()


def _done(ground: Ground, asked: argparse.Namespace) -> dict[str, Any]:
    """Do one kind of thing, and return its figures; `failed` has a line for each command that does not hold."""
    began, draw = time.monotonic(), random.Random(getattr(asked, "seed", 0))
    figures, failed = dict[str, dict[str, Any]](), []
    each: dict[str, Callable[[str], dict[str, Any]]] = {
        "kill": lambda name: kill_at_points(ground, name, asked.tries),
        "full": lambda name: fill(ground, name, asked.tries or 8, draw),
        "mount": lambda name: fill(ground, name, asked.tries or 8, draw),
        "random": lambda name: kill_at_random(ground, asked.kills, asked.seed, getattr(asked, "arrays", "folder")),
    }
    for name in ["random"] if asked.what == "random" else asked.commands or list(COMMANDS):
        try:
            figures[name] = each[asked.what](name)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
        print(name, figures.get(name, "failed"), f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    numbers = {key for one in figures.values() for key, value in one.items() if isinstance(value, int)}
    total = {key: sum(one[key] for one in figures.values()) for key in sorted(numbers)}
    return total | {"failed": failed, "seconds": round(time.monotonic() - began), "commands": figures}
