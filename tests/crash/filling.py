"""Lets the disk be full at some point of a command: its error must be clear, and nothing half-written.

Either from the n-th change on that needs space, every such change is refused (`faults.FULL`; the first is a write cut
short), or commands run on a small file system of their own, whose size is drawn.
"""

import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import files_of
from tests.crash import faults
from tests.crash.commands import COMMANDS
from tests.crash.killing import Ground, act, check_after, expected_of

PAGE = 4096
FULL = ("No space left on device", "disk is full", "disk I/O error", "unable to open database file", "its disk has")
"""How the system, SQLite and this program call it."""


@dataclass
class Mounted(Ground):
    """A ground whose world is a file system in memory, in a mount namespace of this process."""

    def fresh(self, start: Path | None) -> None:
        """Put a copy of `start` onto a new file system without a limit."""
        self.clear()
        self.world.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", self.world], check=True)
        if start is not None:
            shutil.copytree(start, self.world, dirs_exist_ok=True)

    def clear(self) -> None:
        """Take the file system away."""
        subprocess.run(["umount", self.world], check=False, stderr=subprocess.DEVNULL)
        super().clear()

    def used(self) -> int:
        """Return the bytes that are taken."""
        told = os.statvfs(self.world)
        return (told.f_blocks - told.f_bfree) * told.f_frsize

    def leave(self, free: int | None) -> None:
        """Leave so many bytes free; None for no limit."""
        size = "50%" if free is None else str(self.used() + free)
        subprocess.run(["mount", "-o", f"remount,size={size}", "none", self.world], check=True)


def fill(ground: Ground, name: str, tries: int, draw: random.Random) -> dict[str, int]:
    """Let the disk be full at random points of one command, and return the points, those tried and those refused.

    Points of a file system are pages that the command takes, else changes that need space.
    """
    start = ground.start(COMMANDS[name].start)
    ground.fresh(start)
    before = ground.used() if isinstance(ground, Mounted) else 0
    points, _, expected = expected_of(ground, name, faults.COUNT if isinstance(ground, Mounted) else faults.FULL)
    if isinstance(ground, Mounted):
        points = max(0, ground.used() - before) // PAGE + 16
    refused, ended = 0, set[str]()
    for _ in range(tries):
        at = draw.randrange(points)
        ground.fresh(start)
        code, said = _met(ground, name, at)
        refused += code != 0
        _check_told(ground, code, said)
        check_after(ground, name, expected, f"full from {at} of {points}: {said}", ended)
    return {"points": points, "tried": tries, "refused": refused}


def _met(ground: Ground, name: str, at: int) -> tuple[int, str]:
    """Run a command, in a child, that meets a full disk, and return its exit code and what it said."""
    if isinstance(ground, Mounted):
        ground.leave(at * PAGE)
        code, said = ground.told(lambda: act(ground, name))
        ground.leave(None)
        return code, said

    def armed() -> tuple[int, str]:
        faults.arm(faults.FULL, ground.world, at)
        done = act(ground, name)
        faults.arm(0, ground.world)
        return done

    code, said = ground.told(armed)
    return code, said


def _check_told(ground: Ground, code: int, said: str) -> None:
    """Check that a command that was refused said so, and left nothing half-written."""
    assert code in (0, 1), code
    assert "Traceback" not in said
    assert "bug in the program" not in said
    if code == 0:
        return
    assert "error: " in said
    assert "  next: " in said
    assert any(words in said for words in FULL), said
    left = {name for name in files_of(ground.world / "out") if not name.startswith("partial/")}
    assert not left, f"half-written: {left}"
    left = {str(path) for path in ground.world.rglob(".*")}
    assert not left, f"left: {left}"
