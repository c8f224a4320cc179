"""Kills a process that does one command after another, at any time."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from registry import Registry
from tests.conftest import files_of
from tests.crash import faults
from tests.crash.checking import Rows, dangling, folders_differ, lost_rows, outcome, rows_of, verified
from tests.crash.commands import run
from tests.crash.killing import Ground

EXPERTS = ("code", "math", "law", "german")
LONGEST = {"folder": 2.5, "s3": 5.0}
"""Where the arrays are → seconds after which a process is killed at the latest."""


def kill_at_random(ground: Ground, kills: int, seed: int, arrays: str = "folder") -> dict[str, Any]:
    """Kill a process `kills` times, each on what the one before left, and return figures."""
    draw, journal = random.Random(seed), ground.scratch / "journal"
    given = ground.given
    ground.fresh(None)
    (ground.world / "tmp").mkdir(parents=True)
    finished, begun = 0, dict[str, int]()
    for number in range(kills):
        before = rows_of(ground.world / "home")
        journal.write_bytes(b"")
        ended = _killed(ground, journal, f"{seed} {number}", draw.uniform(0.0, LONGEST[arrays]))
        assert ended == -signal.SIGKILL, f"process {number} ended with {ended}"
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        finished += sum(line["code"] is not None for line in lines)
        under_way = lines[-1]["words"] if lines and lines[-1]["code"] is None else None
        begun[under_way[0] if under_way else "none"] = begun.get(under_way[0] if under_way else "none", 0) + 1

        def check(lines: list[Any] = lines, under_way: Any = under_way, before: Rows = before) -> list[str]:
            problems = [*dangling(ground.world / "home"), *verified(ground.world / "home")]
            problems += lost(before, rows_of(ground.world / "home"), lines)
            assert not problems, (under_way, problems)
            if under_way:
                done = run(ground.world, under_way)
                assert done.exit_code == 0 or " exists" in done.output, (under_way, done.output)
            return _composed(ground.world)

        members = ground.told(check)
        if members:
            found = ground.world / "all"
            assert not (where := folders_differ(found, expected_of(ground, members))), f"kill {number}: {where}"
    left = ground.told(lambda: outcome(ground.world))
    assert left["hidden"] == []
    assert given.exists()
    return {"kills": kills, "finished": finished, "under way": begun}


def expected_of(ground: Ground, members: list[str]) -> Path:
    """Return the composition of a fresh registry that holds its members and nothing else, made the first time."""
    place = ground.scratch / "fresh" / "-".join(members)

    def make() -> None:
        with Registry(place.with_name(f"{place.name}.home")) as opened:
            for name in reversed(members):
                opened.add_expert(name, ground.given / name)
            opened.compose(members, place)

    assert place.exists() or faults.forked(make) == 0
    return place


def lost(before: Rows, now: Rows, lines: list[Any]) -> Iterator[str]:
    """Yield what a catalog knew, or a command that ended said it did, and what it does not know now."""
    yield from lost_rows(before, now)
    known = {row["digest"] for row in now.get("compositions", ())}
    yield from (f"composition {row}" for row in before.get("compositions", ()) if row["digest"] not in known)
    numbers = {row["id"]: row["name"] for row in now.get("experts", ())}
    active = {numbers[row["expert_id"]] for row in now.get("versions", ()) if row["state"] == "active"}
    told: dict[str, bool] = {}
    for line in lines:
        words = line["words"]
        if words[0] in ("add-expert", "opt-out"):
            told[words[1]] = words[0] == "add-expert"
            if line["code"] is None:
                del told[words[1]]
    yield from (f"{name} is {'not ' * (not there)}active" for name, there in told.items() if (name in active) != there)


def _killed(ground: Ground, journal: Path, seed: str, delay: float) -> int:
    """Let a child do commands, kill it after `delay` seconds and return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            _work(ground, journal, random.Random(seed))
        finally:
            os._exit(1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _work(ground: Ground, journal: Path, draw: random.Random) -> None:
    """Do one command after another, noting in `journal` what begins and what has ended."""
    ended: list[dict[str, Any]] = []
    while True:
        words = _drawn(ground, draw)
        _note(journal, [*ended, {"words": words, "code": None}])
        done = run(ground.world, words)
        if done.exit_code != 0 and " exists" not in done.output:
            print(words, done.output, flush=True)
            return
        ended.append({"words": words, "code": done.exit_code})
        _note(journal, ended)


def _note(journal: Path, lines: list[dict[str, Any]]) -> None:
    fresh = journal.with_suffix(".new")
    fresh.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fresh.replace(journal)


def _drawn(ground: Ground, draw: random.Random) -> list[str]:
    """Return the words of a command that the registry as it is can do."""
    world, given, names = ground.world, ground.given, _active(ground.world)
    kinds, new = ["add", "add", "add", "gc", "base"], draw.choice(EXPERTS)
    some, one = draw.sample(names, draw.randint(1, len(names))) if names else [], draw.choice(names or [""])
    file, key, router = world / f"{draw.randrange(1 << 40):x}", draw.choice("abc"), draw.choice(("context", "ridge"))
    if names:
        kinds += ["compose", "compose", "dense", "refine", "opt-out", "purge", "alias", "export", "tag"]
    if (world / "moe").exists() and len(files_of(world / "moe")) > 1:
        made = json.loads((world / "moe" / "composition.json").read_bytes())
        members = {member["name"] for member in made["members"]}
        if len(members) > 1 and members <= set(names):
            kinds += ["evaluate", *(["train"] if made["recipe"]["router"] == "ridge" else [])]
    compose, data = f"compose --experts {','.join(sorted(some))} --force --out {world}", f"{given}/code.jsonl"
    lines = {
        "add": f"add-expert {new} {given}/{new}",
        "base": f"add-base base {given}/base",
        "gc": "gc",
        "compose": f"{compose}/moe --router {router} --top-k 1",
        "dense": f"{compose}/dense --to dense",
        "refine": f"{compose}/moe --router ridge --refine 1 --top-k 1",
        "opt-out": f"opt-out {one} --yes",
        "purge": f"opt-out {one} --purge --yes --receipt {file}",
        "alias": f"alias {one} {key}",
        "tag": f"add-expert {one} {given}/{one} --tag {key}={draw.randrange(9)}",
        "export": f"export {one} --out {file}",
        "train": f"train-router {world}/moe --data {data} --steps 2 --batch-size 2 --seq-len 16 --device cpu --force "
        f"--out {world}/trained",
        "evaluate": f"evaluate {world}/moe --data code={data} --windows 1 --seq-len 16",
    }
    return lines[draw.choice(kinds)].split()


def _active(world: Path) -> list[str]:
    rows = rows_of(world / "home")
    names = {row["id"]: row["name"] for row in rows.get("experts", ()) if row["kind"] == "expert"}
    found = {names.get(row["expert_id"]) for row in rows.get("versions", ()) if row["state"] == "active"}
    return sorted(name for name in found if name)


def _composed(world: Path) -> list[str]:
    """Compose all that are active, and return who they are."""
    names = _active(world)
    if names:
        done = run(world, ["compose", "--experts", ",".join(names), "--force", "--out", world / "all"])
        assert done.exit_code == 0, done.output
    elif (world / "all").exists():
        shutil.rmtree(world / "all")
    return names
