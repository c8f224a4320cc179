"""Feeds inputs that are nearly right, or quite wrong, to every parser, in a process of their own.

    python -m tests.fuzz --inputs N --seed S [--only TARGET] [--keep DIR]

Each input must be taken or refused by a RegError (on the command line: exit code 0, 1 or 2, no traceback). It has 5
seconds of processor time, and ten minutes by the clock, and may make the process grow by 500 MB: by its largest
resident size (VmHWM, which is reset before) less what it had. The registry's home must be as it was: the same files,
the same bytes.

Prints one line of JSON; `--keep` keeps the inputs that did otherwise.
"""

import argparse
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
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
from registry.statistics.kept_tensors import PREFIXES
from tests.conftest import files_of
from tests.fuzz.fuzz_world import World
from tests.fuzz.reading import Act
from tests.fuzz.targets import TARGETS

PRELOADED = (alembic.command, zarr, transformers.models.llama.modeling_llama, AutoModelForCausalLM, AutoTokenizer)
SECONDS = 5
"""Of processor time."""
CLOCK_SECONDS = 600
MEGABYTES = 500
BATCH = 50
"""Inputs that one process is fed."""
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
    """Return every file below `home` with its size and time of change, but for products that compositions keep."""
    found = {}
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        if not path.is_dir() and not path.name.startswith(PREFIXES):
            found[str(path.relative_to(home))] = (status.st_size, status.st_mtime_ns)
    return found


def _lasting(home: Path) -> dict[str, bytes]:
    """Return every file below `home`, but for products that compositions keep."""
    return {name: data for name, data in files_of(home).items() if not Path(name).name.startswith(PREFIXES)}


class Batch:
    """Feeds inputs one after the other in a child, which writes a line of JSON as it begins and ends each."""

    def __init__(self, world: World, names: Sequence[str], seed: int, keep: Path | None) -> None:
        self.world, self.names, self.seed, self.keep = world, names, seed, keep
        self.before = signature(world.home)

    def run(self, numbers: range) -> Iterator[dict[str, Any]]:
        """Yield how each input ended, and what it took; after one that felled the child no more come."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                _limit()
                with os.fdopen(writing, "w") as pipe:
                    for number in numbers:
                        for line in self._feed(number):
                            pipe.write(json.dumps(line) + "\n")
                            pipe.flush()
            finally:
                os._exit(0)
        os.close(writing)
        begun: dict[str, Any] = {}
        with os.fdopen(reading) as pipe:
            for text in pipe:
                line = json.loads(text)
                begun = line if "target" in line else {}
                if not begun:
                    yield line
        _, status = os.waitpid(child, 0)
        if begun:
            code = os.waitstatus_to_exitcode(status)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield {"name": begun["target"], "wrong": f"ended by {how}", "seconds": float(SECONDS), "megabytes": 0.0}
            self._keep(numbers.start, begun["target"])
            shutil.rmtree(self.world.scratch)
            self.world.scratch.mkdir()

    def _feed(self, number: int) -> Iterator[dict[str, Any]]:
        draw = random.Random(f"{self.seed} {number}")
        name = draw.choices(self.names, [TARGETS[name][0] for name in self.names])[0]
        yield {"target": name}
        act = TARGETS[name][1](self.world, draw)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before, used = _resident("VmRSS"), time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used) + SECONDS, resource.RLIM_INFINITY))
        signal.alarm(CLOCK_SECONDS)
        said = _outcome(act)
        said |= {
            "name": name,
            "seconds": round(time.process_time() - used, 2),
            "megabytes": round(max(0.0, _resident("VmHWM") - before), 1),
        }
        if said["megabytes"] > MEGABYTES:
            said["wrong"] = f"it grew by {said['megabytes']} MB"
        if (now := signature(self.world.home)) != self.before:
            changed = sorted(path for path in {*now, *self.before} if now.get(path) != self.before.get(path))
            said["wrong"] = f"{said.get('wrong', '')} the home was changed: {changed[:3]}"
            self.before = now
        if "wrong" in said:
            self._keep(number, name)
        shutil.rmtree(self.world.scratch)
        self.world.scratch.mkdir()
        yield said

    def _keep(self, number: int, name: str) -> None:
        if self.keep is not None:
            place = self.keep / f"{self.seed}-{number}-{name}"
            shutil.copytree(self.world.scratch, place, dirs_exist_ok=True, symlinks=True)


def _limit() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BACKSTOP, size + BACKSTOP))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _resident(what: str) -> float:
    """Return a line of /proc/self/status in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{what}:"))


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
    batch, whole = Batch(world, [only] if only else list(TARGETS), seed, keep), _lasting(world.home)
    number = 0
    while number < inputs:
        for said in batch.run(range(number, min(number + BATCH, inputs))):
            name = said["name"]
            found.seconds[name] = max(found.seconds.get(name, 0.0), said["seconds"])
            found.megabytes[name] = max(found.megabytes.get(name, 0.0), said["megabytes"])
            if "wrong" in said:
                found.wrong.append(f"input {number}, {name}: {said['wrong']}")
                batch.before = signature(world.home)
            else:
                (found.taken if "taken" in said else found.refused)[name] += 1
            number += 1
    if _lasting(world.home) != whole:
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
