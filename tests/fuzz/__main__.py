"""Feeds inputs that are nearly right, or quite wrong, to every parser, in a process of their own.

    python -m tests.fuzz --inputs N --seed S [--only TARGET] [--keep DIR]

Each input must be taken or refused by a RegError (on the command line: exit code 0, 1 or 2, no traceback). It has 5
seconds of processor time, and ten minutes by the clock, and may make the process grow by 500 MB: by its largest
resident size (VmHWM, which is reset before) less what it had. The registry's home must be as it was: the same files,
the same bytes.

Prints one line of JSON; `--keep` keeps the inputs that did otherwise.
"""

import math
import multiprocessing as mp
import os
import random
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from registry.errors import RegError
from registry.statistics.cache import PREFIXES
from tests.fuzz import of_checkpoints, of_compositions, of_text, of_training
from tests.fuzz.fuzz_world import World
from tests.fuzz.reading import Act
from tests.mutations import Draw
from tests.preloaded import before_forks
from tests.running import command_line, tell

TARGETS: dict[str, tuple[int, Callable[[World, Draw], Act]]] = {
    "safetensors": (14, of_checkpoints.safetensors),
    "index": (8, of_checkpoints.index),
    "config": (10, of_checkpoints.config),
    "adapter": (8, of_checkpoints.adapter),
    "tokenizer": (8, of_checkpoints.tokenizer),
    "data": (12, of_text.data),
    "names": (12, of_text.names),
    "receipts": (8, of_compositions.receipts),
    "composition": (8, of_compositions.composition),
    "recipe_file": (6, of_compositions.recipe_file),
    "results": (4, of_text.results),
    "training": (4, of_checkpoints.training),
    "statistics": (8, of_checkpoints.statistics),
    "arrays": (6, of_compositions.arrays),
    "ensemble": (6, of_compositions.ensemble),
    "soup": (6, of_training.soup),
    "simoe": (6, of_training.simoe),
    "context": (6, of_compositions.context),
    "database": (2, of_compositions.database),
    "largest": (1, of_text.largest),
}
"""Name → how often of a hundred or so, and what makes an input, and returns the public entry that reads it."""
FORK = mp.get_context("fork")
SECONDS = 5
"""Of processor time."""
CLOCK_SECONDS = 600
MEGABYTES = 500
BATCH = 50
"""Inputs that one process is fed."""
BACKSTOP = 4 * 2**30
"""Bytes of address space that a process may add: so that a fault fells the process, and not the machine."""


def lasting(home: Path) -> list[Path]:
    """Return every file below `home`, but for products that compositions keep."""
    return [path for path in home.rglob("*") if not path.is_dir() and not path.name.startswith(PREFIXES)]


def signature(home: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every lasting file below `home` that stays while it is looked at."""
    found = dict[str, tuple[int, int]]()
    for path in lasting(home):
        with suppress(FileNotFoundError):
            status = path.lstat()
            found[str(path.relative_to(home))] = status.st_size, status.st_mtime_ns
    return found


class Batch:
    """Feeds inputs one after the other in a child, which tells as it begins and ends each."""

    def __init__(self, world: World, names: Sequence[str], seed: int, keep: Path | None) -> None:
        self.world, self.names, self.seed, self.keep = world, names, seed, keep
        self.before = signature(world.home)

    def run(self, numbers: range) -> Iterator[dict[str, Any]]:
        """Yield how each input ended, and what it took; after one that felled the child no more come."""
        told, telling = FORK.Pipe(duplex=False)
        child = FORK.Process(target=self._feed_all, args=(numbers, telling))
        child.start()
        telling.close()
        begun: str | None = None
        with suppress(EOFError):
            while True:
                said = told.recv()
                begun = said.get("target")
                if begun is None:
                    yield said
        child.join()
        if begun:
            code = child.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield {"name": begun, "wrong": f"ended by {how}", "seconds": float(SECONDS), "megabytes": 0.0}
            self._keep(numbers.start, begun)
            shutil.rmtree(self.world.scratch)
            self.world.scratch.mkdir()

    def _feed_all(self, numbers: range, telling: Connection) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + BACKSTOP, size + BACKSTOP))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in numbers:
            for said in self._feed(number):
                telling.send(said)

    def _feed(self, number: int) -> Iterator[dict[str, Any]]:
        draw = random.Random(f"{self.seed} {number}")
        name = draw.choices(self.names, [TARGETS[name][0] for name in self.names])[0]
        yield {"target": name}
        act = TARGETS[name][1](self.world, draw)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before, used = _resident("VmRSS"), time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used) + SECONDS, resource.RLIM_INFINITY))
        signal.alarm(CLOCK_SECONDS)
        said = _outcome(act) | {"name": name}
        said |= {"seconds": round(time.process_time() - used, 2)}
        said |= {"megabytes": round(max(0.0, _resident("VmHWM") - before), 1)}
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


def run(world: World, inputs: int, seed: int, only: str | None, keep: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Feed `inputs` inputs; return for each target what came of them, and what should not be, one line each."""
    figures: dict[str, Any] = {}
    wrong = list[str]()
    batch = Batch(world, [only] if only else list(TARGETS), seed, keep)
    whole = {path: path.read_bytes() for path in lasting(world.home)}
    number = 0
    while number < inputs:
        for said in batch.run(range(number, min(number + BATCH, inputs))):
            one = figures.setdefault(said["name"], {"taken": 0, "refused": 0, "seconds": 0.0, "MB": 0.0})
            one["seconds"], one["MB"] = max(one["seconds"], said["seconds"]), max(one["MB"], said["megabytes"])
            if "wrong" in said:
                wrong.append(f"input {number}, {said['name']}: {said['wrong']}")
                batch.before = signature(world.home)
            else:
                one["taken" if "taken" in said else "refused"] += 1
            number += 1
    if {path: path.read_bytes() for path in lasting(world.home)} != whole:
        wrong.append("the home's bytes were changed")
    return figures, wrong


def main() -> None:
    """Do all of it."""
    parser = command_line(__doc__, inputs=5000, seed=0)
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--keep", type=Path)
    given, started = parser.parse_args(), time.monotonic()
    before_forks()
    with TemporaryDirectory(dir=given.scratch) as folder:
        figures, wrong = run(World(Path(folder)), given.inputs, given.seed, given.only, given.keep)
    columns = {key: [one[key] for one in figures.values()] for key in ("taken", "refused", "seconds", "MB")}
    told = {"inputs": given.inputs, "seed": given.seed, "wrong": len(wrong), "targets": figures}
    told |= {"taken": sum(columns["taken"]), "refused": sum(columns["refused"])}
    told |= {"most_seconds": max(columns["seconds"]), "most_MB": max(columns["MB"])}
    tell(told | {"seconds": round(time.monotonic() - started)}, wrong)


if __name__ == "__main__":
    main()
