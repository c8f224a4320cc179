"""Feeds inputs that are nearly right, or quite wrong, to every parser, each in a process of its own.

    python -m tests.fuzz --inputs N --seed S [--only TARGET] [--keep DIR]

Each input must be taken or refused by a RegError (on the command line: exit code 0, 1 or 2, no traceback). A process
has 5 seconds of processor time, and a minute by the clock, and may grow by 500 MB: the growth is its largest resident
size (`ru_maxrss`) less what it had when it was forked. The registry's home must be as it was: the same files, the same
bytes.

Prints one line of JSON; `--keep` keeps the inputs that did otherwise.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# What a parser imports is imported before the forks, so that its time and memory are not the input's.
import alembic.command
import torch
import transformers.models.llama.modeling_llama
import zarr
from transformers import AutoModelForCausalLM, AutoTokenizer

from registry.errors import RegError
from tests.conftest import files_of
from tests.fuzz_targets import TARGETS, Act
from tests.fuzz_world import World

PRELOADED = (alembic.command, zarr, transformers.models.llama.modeling_llama, AutoModelForCausalLM, AutoTokenizer)
SECONDS = 5
"""Of processor time."""
CLOCK_SECONDS = 60
MEGABYTES = 500
BACKSTOP = 4 * 2**30
"""Bytes of address space that a process may add: so that a fault fells the process, and not the machine."""


@dataclass
class Found:
    """What came of the inputs.

    Attributes:
        taken: target → inputs that were read.
        refused: target → inputs that were refused.
        seconds: target → the most processor time that one took.
        megabytes: target → the most that a process grew by.
        wrong: what should not be; one line each.
    """

    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def signature(home: Path) -> dict[str, tuple[int, int]]:
    """Return every file below `home` with its size and time of change."""
    found = {}
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        if not path.is_dir():
            found[str(path.relative_to(home))] = (status.st_size, status.st_mtime_ns)
    return found


def in_process(act: Act) -> dict[str, Any]:
    """Run `act` in a child and return how it ended, and what it took."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _limit()
            before = _resident()
            said = _outcome(act)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
            said["megabytes"] = round(max(0, grown) / 1e6, 1)
            said["seconds"] = round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 2)
            os.write(writing, json.dumps(said).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        code = os.waitstatus_to_exitcode(status)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return {"wrong": f"ended by {how}", "seconds": float(SECONDS), "megabytes": 0.0}
    found: dict[str, Any] = json.loads(data)
    return found


def _limit() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BACKSTOP, size + BACKSTOP))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(CLOCK_SECONDS)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _outcome(act: Act) -> dict[str, Any]:
    try:
        act()
    except RegError as error:
        return {"refused": type(error).__name__, "message": str(error)[:300]}
    except BaseException as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-4:])
        return {"wrong": f"{type(error).__name__}: {str(error)[:500]}\n{where[-1500:]}"}
    return {"taken": True}


def run(root: Path, inputs: int, seed: int, only: str | None = None, keep: Path | None = None) -> Found:
    """Feed `inputs` inputs."""
    torch.set_num_threads(1)  # no thread pool may exist when a process forks
    world, found = World.make(root), Found()
    names = [only] if only else list(TARGETS)
    before, whole = signature(world.home), files_of(world.home)
    for number in range(inputs):
        draw = random.Random(f"{seed} {number}")
        name = draw.choices(names, [TARGETS[name][0] for name in names])[0]
        said = in_process(TARGETS[name][1](world, draw))
        if said["megabytes"] > MEGABYTES:
            said["wrong"] = f"it grew by {said['megabytes']} MB"
        if signature(world.home) != before:
            now = signature(world.home)
            changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
            said["wrong"] = f"{said.get('wrong', '')} the home was changed: {changed[:3]}"
            before = now
        found.seconds[name] = max(found.seconds.get(name, 0.0), said["seconds"])
        found.megabytes[name] = max(found.megabytes.get(name, 0.0), said["megabytes"])
        if "wrong" in said:
            found.wrong.append(f"input {number}, {name}: {said['wrong']}")
            if keep is not None:
                shutil.copytree(world.scratch, keep / f"{seed}-{number}-{name}", dirs_exist_ok=True, symlinks=True)
        else:
            (found.taken if "taken" in said else found.refused)[name] += 1
        shutil.rmtree(world.scratch)
        world.scratch.mkdir()
    if files_of(world.home) != whole:
        found.wrong.append("the home's bytes were changed")
    return found


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    memory, started = Path("/dev/shm"), time.monotonic()
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        found = run(Path(folder), arguments.inputs, arguments.seed, arguments.only, arguments.keep)
    for line in found.wrong:
        print(line, file=sys.stderr)
    by_target = {
        name: {
            "taken": found.taken[name],
            "refused": found.refused[name],
            "seconds": found.seconds[name],
            "MB": found.megabytes[name],
        }
        for name in TARGETS
        if name in found.seconds
    }
    figures = {
        "inputs": arguments.inputs,
        "seed": arguments.seed,
        "taken": found.taken.total(),
        "refused": found.refused.total(),
        "wrong": len(found.wrong),
        "most_seconds": max(found.seconds.values()),
        "most_MB": max(found.megabytes.values()),
        "targets": by_target,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(figures))
    if found.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
