"""Kills a command before and after every change of a file, and in the middle of every write."""

import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash import faults
from tests.crash.checking import outcome, signature, sound, verified
from tests.crash.commands import COMMANDS, make_given, make_start, run

ENDED = (" exists", "has no alias")
"""What commands say that had ended before they were killed, and are repeated."""


@dataclass
class Ground:
    """A folder in which commands run, always in the same place, so that nothing differs but what is done there."""

    scratch: Path
    _starts: dict[str, Path] = field(default_factory=dict)

    @property
    def world(self) -> Path:
        """Where commands run."""
        return self.scratch / "world"

    @property
    def given(self) -> Path:
        """The checkpoints; made the first time."""
        folder = self.scratch / "given"
        if not folder.exists():
            assert faults.forked(lambda: make_given(folder)) == 0
        return folder

    def start(self, name: str) -> Path:
        """Return the world that commands begin from; made the first time."""
        if name not in self._starts:
            given = self.given
            self.fresh(None)
            assert faults.forked(lambda: make_start(name, self.world, given)) == 0
            self._starts[name] = Path(shutil.copytree(self.world, self.scratch / f"start-{name}"))
        return self._starts[name]

    def fresh(self, start: Path | None) -> None:
        """Put a copy of `start` where commands run, or nothing."""
        self.clear()
        if start is not None:
            shutil.copytree(start, self.world)

    def clear(self) -> None:
        """Delete the world."""
        shutil.rmtree(self.world, ignore_errors=True)

    def told(self, action: Callable[[], Any]) -> Any:
        """Return what `action` returns, in a child; JSON."""
        file = self.scratch / "told.json"
        assert faults.forked(lambda: file.write_text(json.dumps(action()))) == 0
        return json.loads(file.read_text())


def act(ground: Ground, name: str) -> tuple[int, str]:
    """Run a command in the world of `ground`, in this process; return exit code and what it said."""
    done = run(ground.world, COMMANDS[name].words(ground.world, ground.given))
    return done.exit_code, done.output


def expected_of(ground: Ground, name: str, how: int) -> tuple[int, list[int], Any]:
    """Return how many points of `how` a command has, those that differ in what is on disk, and what it leads to."""
    start = ground.start(COMMANDS[name].start)
    ground.fresh(start)

    def undisturbed() -> tuple[int, list[int], list[str]]:
        faults.arm(how, ground.world, 1 << 40)
        code, said = act(ground, name)
        points = faults.count()
        distinct = faults.distinct() if how == faults.COUNT else list(range(points))
        faults.arm(0, ground.world)
        assert code == 0, said
        verified(ground.world / "home")
        return points, distinct, sorted(sys.modules)

    points, distinct, modules = ground.told(undisturbed)
    for module in modules:  # so that no child does it again
        with suppress(ImportError):
            importlib.import_module(module)
    return points, distinct, ground.told(lambda: outcome(ground.world))


def check_after(ground: Ground, name: str, expected: Any, where: str, as_expected: set[str]) -> None:
    """Check in a child what a disturbed command left, and that repeating it leads to what it must.

    `as_expected` has the signatures of worlds that were found to be so after a repeat: no equal one is composed again.
    """
    told = ground.scratch / "ended.txt"

    def check() -> None:
        problems = sound(ground.start(COMMANDS[name].start), ground.world)
        assert not problems, problems
        code, said = act(ground, name)
        assert code == 0 or any(text in said for text in ENDED), said  # then the result is there: it is compared below
        told.write_text(ended := signature(ground.world))
        if ended in as_expected:  # times and what is taken over them are in no signature
            assert not verified(ground.world / "home")
        else:
            found = outcome(ground.world)
            assert found == expected, f"the repeat led elsewhere: {differences(found, expected)}"

    assert faults.forked(check) == 0, f"{name}, {where}"
    as_expected.add(told.read_text())


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Return the places at which two documents differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = sorted({*found, *expected})
        return [text for key in keys for text in differences(found.get(key), expected.get(key), f"{where}/{key}")]
    return [] if found == expected else [f"{where}: {str(found)[:300]} instead of {str(expected)[:300]}"]


def kill_at_points(ground: Ground, name: str, tries: int | None) -> dict[str, int]:
    """Kill one command at `tries` of its points, and return points, those that differ, points tried, kills and states.

    A point before a change is not tried where nothing changed since the one after the last. Of states that are equal
    but for times, one is checked.
    """
    total, distinct, expected = expected_of(ground, name, faults.COUNT)
    kills, seen, ended = 0, set[str](), set[str]()
    last = len(distinct) - 1
    chosen = sorted({distinct[round(last * n / (tries - 1))] for n in range(tries)} if tries else distinct)
    for point in chosen:
        ground.fresh(ground.start(COMMANDS[name].start))

        def disturbed(point: int = point) -> None:
            faults.arm(faults.KILL, ground.world, point)
            code, said = act(ground, name)
            assert code == 0, said
            os._exit(0)

        code = faults.forked(disturbed)
        assert code in (0, -signal.SIGKILL), f"{name}, point {point}: the command ended with {code}"
        kills += code != 0
        state = signature(ground.world)
        if state not in seen:
            seen.add(state)
            check_after(ground, name, expected, f"killed at point {point} of {total}", ended)
    tried = {"points": total, "distinct": len(distinct), "tried": len(chosen), "kills": kills}
    return tried | {"states": len(seen), "ends": len(ended)}
