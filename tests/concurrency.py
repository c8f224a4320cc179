"""Many processes at once on one registry: nobody is told of anything but what others did to what was asked for.

    python -m tests.concurrency [--processes 8] [--operations 200] [--seed 0] [--creations 20]
                                [--scratch DIR] [--database sqlite|postgresql] [--arrays folder|s3]

First the registry is created by all processes at once, some times over. Then each does its share of mixed operations:
looking, adding (the same checkpoint as others, at the same moment), aliases, tags, composing into a folder of its own
and into one of all (`--force`), evaluating, opting out, purging, collecting garbage, verifying, reproducing, and
compositions so slow that others purge their members meanwhile; some in Python, some as commands. A refusal must be one
of `REFUSALS`. At the end nothing that was reported done may be missing, every folder must be, byte by byte, what a
registry that never held anything but its members makes of them, the log must be whole, and `reg verify` clean.
Prints one line of JSON with its figures; every fault is told on stderr.
"""

import json
import multiprocessing as mp
import os
import random
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from cli.main import main as reg
from registry import Registry
from registry.errors import RegError
from registry.evaluation import TestSettings
from registry.progress import Advance, silent
from registry.registration.summary_store import strays_in
from tests.catalogs import in_database
from tests.preloaded import before_forks
from tests.running import add_places, command_line, tell
from tests.s3_server import in_storage
from tests.tiny import BASE, CONTENTS, RECIPES, SETTINGS, Fresh, Pool, make_pool, tree

NAMES = ("code", "math", "law", "german")
SHARED = "shared"
REFUSALS = {
    "opted out before": r"ConflictError: (every version of )?\S+ was opted out( at .*)?",
    "opted out meanwhile": r"ConflictError: \S+ was opted out meanwhile, at .*",
    "a member of the folder was opted out": r"ConflictError: \S+ holds \S+, which was opted out at .*",
    "not registered yet": r"NotFoundError: there is no expert '.*",
    "alias taken away": r"NotFoundError: \S+ has no alias '.*",
    "no base model": r"IncompatibleError: this recipe needs the base model, and none is registered",
}
"""What another process may have done to what was asked for, and how that is told."""
TOGETHER = 20
"""After so many operations all processes register the same checkpoint at the same moment."""


Weights = dict[Callable[[Registry], Any], int]
"""Operations, and how often each is done."""


@contextmanager
def slow(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Take a while for every tensor."""
    yield lambda amount: time.sleep(0.1)


class Worker:
    """One process's operations; what came of each is a line in its journal."""

    def __init__(self, home: Path, pool: Pool, out: Path, seed: str, barrier: Any) -> None:
        self.home, self.pool, self.out, self.barrier = home, pool, out, barrier
        self.draw = random.Random(seed)
        self.folders: list[Path] = []
        self.number = 0
        out.mkdir()

    def work(self, operations: int) -> None:
        """Do so many operations."""
        frequent: Weights = {self.look: 10, self.add: 18, self.compose: 12, self.compose_shared: 8, self.command: 14}
        seldom: Weights = {self.alias: 6, self.remove_alias: 3, self.opt_out: 5, self.purge: 6, self.collect: 4}
        heavy: Weights = {
            self.verify: 5,
            self.compose_slowly: 4,
            self.reproduce: 4,
            self.evaluate: 1,
            self.add_by_pass: 1,
        }
        weights = frequent | seldom | heavy
        with self.out.with_suffix(".jsonl").open("w") as journal:
            for self.number in range(operations):
                operation = self.draw.choices(list(weights), list(weights.values()))[0]
                if self.number % TOGETHER == 0:
                    self.barrier.wait(600)
                    operation = self.together
                print(json.dumps(self.attempt(operation)), file=journal, flush=True)

    def attempt(self, operation: Callable[[Registry], Any]) -> dict[str, Any]:
        """Do one operation on the registry, opened as every command does, and return what came of it."""
        entry: dict[str, Any] = {"do": operation.__name__}
        try:
            with Registry(self.home, progress=slow if operation == self.compose_slowly else silent) as opened:
                return entry | {"done": operation(opened)}
        except RegError as error:
            return entry | {"refused": f"{type(error).__name__}: {error.message}"}
        except Exception as error:
            return entry | {"fault": "".join(traceback.format_exception(error))}

    # -- operations --------------------------------------------------------------------------------------------------

    def look(self, registry: Registry) -> None:
        versions = registry.versions(everything=True)
        registry.log(limit=5)
        registry.compositions()
        if versions:
            ref = self.draw.choice(versions).ref
            registry.compositions(ref)
            registry.relations(ref)

    def together(self, registry: Registry) -> Any:
        """Register what all register now."""
        turn = self.number // TOGETHER
        return self._add(registry, NAMES[turn % len(NAMES)], CONTENTS[turn % len(CONTENTS)], None, {})

    def add(self, registry: Registry) -> Any:
        name, content = self.draw.choice((*NAMES, "base")), self.draw.choice(CONTENTS)
        alias, tags = self.draw.choice((None, None, "stable")), self.draw.choice(({}, {"by": self.out.name}))
        return self._add(registry, name, BASE if name == "base" else content, alias, tags)

    def add_by_pass(self, registry: Registry) -> Any:
        """Register with statistics taken now, by a pass that others may be at as well."""
        bare = shutil.copytree(self.pool.checkpoints["one"], self.out / "bare")
        (bare / "statistics.safetensors").unlink()
        try:
            done = registry.add_expert("passed", bare, data=[self.pool.text], settings=SETTINGS)
            return {"ref": done.version.ref, "digest": done.version.digest, "content": "one"}  # the same text
        finally:
            shutil.rmtree(bare)

    def alias(self, registry: Registry) -> None:
        registry.alias(self.draw.choice(NAMES), self.draw.choice(("stable", "best")))

    def remove_alias(self, registry: Registry) -> None:
        registry.remove_alias(self.draw.choice(NAMES), "best")

    def compose(self, registry: Registry) -> Any:
        return self._compose(registry, self.out / f"moe-{self.number}")

    def compose_slowly(self, registry: Registry) -> Any:
        """Read for long: a member may be purged meanwhile."""
        return self._compose(registry, self.out / f"slow-{self.number}")

    def compose_shared(self, registry: Registry) -> Any:
        return self._compose(registry, self.out.parent / SHARED)

    def reproduce(self, registry: Registry) -> None:
        if self.folders:
            assert registry.reproduce(self.draw.choice(self.folders)).is_same

    def evaluate(self, registry: Registry) -> Any:
        mixtures = [folder for folder in self.folders if "Mixtral" in (folder / "config.json").read_text()]
        if not mixtures:
            return None
        folder = self.draw.choice(mixtures)
        registry.evaluate([folder], {"text": [self.pool.text]}, TestSettings(windows=1, seq_len=16))
        return {"evaluated": json.loads((folder / "composition.json").read_text())["digest"]}

    def opt_out(self, registry: Registry) -> Any:
        active = registry.versions()
        return {"withdrew": registry.opt_out(self.draw.choice(active).ref).withdrew} if active else None

    def purge(self, registry: Registry) -> Any:
        versions = registry.versions(everything=True)
        if not versions:
            return None
        version = self.draw.choice(versions[-8:])
        done = registry.opt_out(version.name if self.draw.random() < 0.1 else version.ref, purge=True)
        return {"withdrew": done.withdrew, "purged": [version.ref for version in done.versions]}

    def collect(self, registry: Registry) -> None:
        registry.gc(dry_run=self.draw.random() < 0.3)

    def verify(self, registry: Registry) -> None:
        assert registry.verify().problems == ()

    def command(self, registry: Registry) -> Any:
        """Do something at the command line."""
        registry.close()
        name, out = self.draw.choice(NAMES), self.out / f"told-{self.number}"
        lines = {
            "list --all --json": 6,
            "log --json": 3,
            "compositions --json": 3,
            f"show {name} --json": 6,
            "verify --json": 3,
            "gc --json": 2,
            f"alias {name} best": 4,
            f"export {name} --out {out}": 4,
            f"compose --experts {','.join(self.draw.sample(NAMES, 2))} --out {out} --json": 6,
            f"add-expert {name} {self.pool.checkpoints[self.draw.choice(CONTENTS)]} --json": 6,
            f"opt-out {name} --yes --json": 1,
        }
        line = self.draw.choices(list(lines), list(lines.values()))[0]
        result = CliRunner().invoke(reg, ["--home", str(self.home), *line.split()])
        if result.exit_code == 0:
            if line.startswith("compose "):
                self.folders.append(out)
                return {"folder": str(out), "digest": json.loads(result.stdout)["digest"]}
            return {"withdrew": json.loads(result.stdout)["withdrew"]} if line.startswith("opt-out") else None
        told = result.stderr.splitlines()
        if result.exit_code == 1 and "--json" in line and told and told[-1].startswith('{"error"'):
            error = json.loads(told[-1])["error"]
            if error["next"]:
                raise _RefusedError(error["message"])
        if result.exit_code == 1 and told and told[0].startswith("error: ") and told[-1].startswith("  next: "):
            raise _RefusedError(told[0].removeprefix("error: "))
        raise AssertionError(f"reg {line} ended with {result.exit_code}: {result.output}") from result.exception

    # -- within ------------------------------------------------------------------------------------------------------

    def _add(self, registry: Registry, name: str, content: str, alias: str | None, tags: dict[str, str]) -> Any:
        add = registry.add_base if name == "base" else registry.add_expert
        done = add(name, self.pool.checkpoints[content], alias=alias, tags=tags)
        return {"ref": done.version.ref, "digest": done.version.digest, "content": content}

    def _compose(self, registry: Registry, out: Path) -> Any:
        found = registry.versions(kind="expert")
        chosen = {v.name: v.ref for v in self.draw.sample(found, len(found)) if v.name in NAMES}
        names = self.draw.sample(list(chosen) or NAMES, min(self.draw.randint(1, 3), len(chosen) or 3))
        recipe = RECIPES[self.draw.choice(list(RECIPES))](names)
        plan = registry.compose([chosen.get(name, name) for name in names], out, recipe, force=True)
        if out.name != SHARED:
            self.folders.append(out)
        return {"folder": str(out), "digest": plan.digest}


class _RefusedError(RegError):
    """A refusal at the command line, which does not tell its kind."""


# -- afterwards ------------------------------------------------------------------------------------------------------


def check(home: Path, scratch: Path, pool: Pool, processes: int) -> tuple[Counter[str], list[str]]:
    """Hold what the registry holds against the journals, and every folder against a fresh registry; count, and tell."""
    entries = [json.loads(line) for n in range(processes) for line in (scratch / f"worker-{n}.jsonl").open()]
    counted: Counter[str] = Counter(operations=len(entries))
    told = list(_judged(entries, counted))
    done = [entry["done"] for entry in entries if entry.get("done")]
    with Registry(home) as registry:
        result = registry.verify()
        told += result.problems
        versions = {version.ref: version for version in registry.versions(everything=True)}
        events = Counter((event.action, event.subject) for event in registry.log())
        counted["events"], counted["versions"] = result.events, len(versions)
        contents: dict[str, str] = {}
        for entry in done:
            if "ref" in entry:
                contents[entry["digest"]] = entry["content"]
                if entry["ref"] not in versions or versions[entry["ref"]].digest != entry["digest"]:
                    told.append(f"{entry['ref']} was registered, and is lost")
        withdrawn = [ref for entry in done for ref in entry.get("withdrew", ())]
        purged = {ref for entry in done for ref in entry.get("purged", ())}
        for ref, version in versions.items():
            if (version.state != "active") != (ref in withdrawn) or (version.state == "purged") != (ref in purged):
                told.append(f"{ref} is {version.state}, which nobody was told")
            if events[f"add-{version.kind}", ref] != 1 or events["opt-out", ref] != (ref in withdrawn):
                told.append(f"the log does not tell of {ref} as often as it should")
        if len(withdrawn) != len(set(withdrawn)):
            told.append("two were told that they withdrew the same version")
        recorded = {made.digest: made for made in registry.compositions()}
        composed = [(entry["folder"], entry["digest"]) for entry in done if "folder" in entry]
        told += [f"{digest} was composed, and is lost" for _, digest in composed if digest not in recorded]
        for digest in {entry["evaluated"] for entry in done if "evaluated" in entry}:
            counted["evaluations"] += 1
            made = recorded[digest]
            if not {*withdrawn} & {*made.members} and not registry.evaluations(made):  # they go with a member
                told.append(f"{digest} was evaluated, and its figures are lost")
        registry.gc()
        if (left := registry.verify()).orphans or left.problems:
            told.append("after collecting garbage there is some left")
        active = [version.digest for version in versions.values() if version.state == "active"]
        told += [f"{path} is a summary of no version" for path in strays_in(home / "summaries", active)]
    told += _folders(scratch, pool, contents, {folder for folder, _ in composed}, counted)
    told += [f"{path} was left behind" for path in (*scratch.rglob(".*.partial"), *scratch.rglob(".*.old"))]
    told += [f"{path} was left behind" for name in ("work", "merged") for path in (home / name).glob("*")]
    return counted, told


def _judged(entries: list[dict[str, Any]], counted: Counter[str]) -> Iterator[str]:
    for entry in entries:
        if "fault" in entry:
            yield f"{entry['do']}: {entry['fault']}"
        elif "refused" in entry:
            said = entry["refused"].removeprefix("_RefusedError: ")
            kinds = (kind for kind, how in REFUSALS.items() if _fits(how, said))
            if (kind := next(kinds, None)) is None:
                yield f"{entry['do']} was refused: {entry['refused']}"
            else:
                counted[kind] += 1


def _fits(how: str, said: str) -> bool:
    """Tell whether a refusal is of a kind; at the command line its class is not told."""
    return bool(re.fullmatch(how, said) or re.fullmatch(how.partition(": ")[2], said))


def _folders(
    scratch: Path, pool: Pool, contents: dict[str, str], folders: Iterable[str], counted: Counter[str]
) -> Iterator[str]:
    fresh = Fresh(pool, scratch / "fresh")
    for folder in sorted(folders):
        found = tree(Path(folder))
        document = json.loads(found["composition.json"])
        members = {(member["name"], contents[member["digest"]]) for member in document["members"]}
        names = [member["name"] for member in document["members"]]
        alike = [name for name in RECIPES if RECIPES[name](names).document(names) == document["recipe"]]
        if not alike:
            yield f"{folder} was composed by a recipe that nobody asked for: {document['recipe']}"
            continue
        recipe = alike[0]
        if found != fresh.files(members, recipe):
            yield f"{folder} is not what a fresh registry makes of {members} by {recipe}"
        counted["folders"] += 1


# -- all of it -------------------------------------------------------------------------------------------------------


def at_once(processes: int, act: Callable[[int, Any], None]) -> list[int]:
    """Do `act` in so many processes, which start at the same moment, and return how each ended."""
    context = mp.get_context("fork")
    barrier = context.Barrier(processes)

    def begin(number: int) -> None:
        barrier.wait(600)
        act(number, barrier)

    children = [context.Process(target=begin, args=(number,)) for number in range(processes)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def create(home: Path, pool: Pool, processes: int) -> list[int]:
    """Create one registry in many processes at once, each registering an expert."""

    def act(number: int, _barrier: Any) -> None:
        with Registry(home, progress=silent) as registry:
            name, content = NAMES[number % len(NAMES)], CONTENTS[number % len(CONTENTS)]
            registry.add_expert(name, pool.checkpoints[content])
            assert registry.verify().problems == ()

    return at_once(processes, act)


def run(processes: int, operations: int, seed: int, creations: int, scratch: Path) -> tuple[dict[str, Any], list[str]]:
    """Do all of it, and return the figures and the faults."""
    before_forks()
    os.environ["COLUMNS"] = "200"
    began = time.monotonic()
    assert at_once(1, lambda number, barrier: (make_pool(scratch / "pool"), None)[1]) == [0]
    pool = Pool({name: scratch / "pool" / name for name in (BASE, *CONTENTS)}, scratch / "pool" / "one.jsonl")
    ended = []
    for number in range(creations):
        ended += create(scratch / f"created-{number}", pool, processes)
        shutil.rmtree(scratch / f"created-{number}")
    home = scratch / "home"

    def act(number: int, barrier: Any) -> None:
        Worker(home, pool, scratch / f"worker-{number}", f"{seed} {number}", barrier).work(operations)

    ended += at_once(processes, act)
    worked = time.monotonic() - began
    counted, told = check(home, scratch, pool, processes)
    told += [f"a process ended with {code}" for code in ended if code != 0]
    seconds = {"seconds": round(worked, 1), "seconds_checking": round(time.monotonic() - began - worked, 1)}
    return {"processes": processes, "creations": creations, **counted, "faults": len(told), **seconds}, told


def main() -> None:
    """Do all of it."""
    parser = command_line(__doc__, processes=8, operations=200, seed=0, creations=20)
    add_places(parser)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="reg-concurrency-", dir=given.scratch) as scratch,
        in_database(given.database),
        in_storage(given.arrays),
    ):
        figures, told = run(given.processes, given.operations, given.seed, given.creations, Path(scratch))
    tell(figures, told)


if __name__ == "__main__":
    main()
