"""Kills a writing command at every step, in a process of its own, and looks at what it leaves.

    python -m tests.crash COMMAND CHECKPOINTS SCRATCH STRIDE

A step is a file opened for writing, created, renamed or deleted (Python's audit events), or a statement or commit of
the catalog. For each chosen step a child is forked, does the command, and kills itself with SIGKILL just before that
step. Then the registry must verify, the command repeated must succeed, and the result must be that of an undisturbed
run.
Prints one line of JSON: steps there are, steps tried, kills.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What the commands import is imported before the forks, so that it costs nothing and is no step.
import alembic.command
import sqlalchemy.event
import torch
import transformers.models.llama.modeling_llama
import zarr
from sqlalchemy import Engine
from transformers import AutoModelForCausalLM, AutoTokenizer

import registry.collecting
import registry.composing.compose
import registry.withdrawing
from registry import PassSettings, Recipe, Registry
from registry.composing import folder
from tests.conftest import files_of

PRELOADED = (alembic.command, zarr, transformers.models.llama.modeling_llama, AutoModelForCausalLM, AutoTokenizer)

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"}


class Steps:
    """Counts steps, and kills the process before the chosen one."""

    def __init__(self, fatal: int | None) -> None:
        self.count, self.fatal = 0, fatal

    def step(self) -> None:
        """Go one step on, or die."""
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def watch(self) -> None:
        """Take every audit event and database statement for a step from now on."""

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
            if opened or event in _CHANGES:
                self.step()

        sys.addaudithook(audit)
        sqlalchemy.event.listen(Engine, "before_cursor_execute", lambda *_: self.step())
        sqlalchemy.event.listen(Engine, "commit", lambda *_: self.step())


def add(home: Path, checkpoints: Path) -> None:
    """Register a second expert, its pass included."""
    with Registry(home) as opened:
        data = [checkpoints / "math.jsonl"]
        settings = PassSettings(tokens=128, seq_len=32, batch_size=1)
        opened.add_expert("math", checkpoints / "math", data=data, settings=settings, tags={"a": "b"}, alias="stable")


def compose(home: Path, checkpoints: Path) -> None:
    """Compose two experts in place of an earlier composition."""
    with Registry(home) as opened:
        opened.compose(["math", "code"], home / "moe", force=True)


def recompose(home: Path, checkpoints: Path) -> None:
    """Compose two experts where they were composed by another recipe, taking over what stays the same."""
    folder.ONE_FILE_BYTES = 0
    with Registry(home) as opened:
        opened.compose(["math", "code"], home / "moe", Recipe(lam=3.0), force=True)


def opt_out(home: Path, checkpoints: Path) -> None:
    """Withdraw and purge an expert."""
    with Registry(home) as opened:
        opened.opt_out("math", purge=True)


def prepare(home: Path, checkpoints: Path, command: str) -> None:
    """Make the registry that the command meets."""
    with Registry(home) as opened:
        opened.add_expert("code", checkpoints / "code")
    if command != "add":
        add(home, checkpoints)
        with Registry(home) as opened:
            folder.ONE_FILE_BYTES = 0 if command == "recompose" else folder.ONE_FILE_BYTES
            opened.compose(["code", "math"] if command == "recompose" else ["code"], home / "moe")


def outcome(home: Path, command: str) -> Any:
    """Return what a finished command must have led to, whatever happened before."""
    with Registry(home) as opened:
        verification = opened.verify()
        assert verification.problems == (), verification.problems
        opened.gc()
        assert opened.verify().orphans == 0
        states = [(v.ref, v.digest, v.state, v.aliases, v.tags) for v in opened.versions(everything=True)]
        moe = files_of(home / "moe") if command in ("compose", "recompose") else None
        if command == "add":
            opened.compose(["code", "math"], home / "after")
            moe = files_of(home / "after")
        left = [path.name for path in home.glob(".*")]
        return states, moe, left, sorted(opened.arrays.digests())


def forked(action: Callable[[], object]) -> int:
    """Run `action` in a child and return how it ended: an exit code, or minus the signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(command: str, checkpoints: Path, scratch: Path, stride: int) -> None:
    """Do all of it."""
    torch.set_num_threads(1)  # no thread pool may exist when a process forks
    registry.statistics_pass.SAVE_SECONDS = 0.0
    act = {"add": add, "compose": compose, "recompose": recompose, "opt-out": opt_out}[command]
    start, undisturbed = scratch / "start", scratch / "undisturbed"
    assert forked(lambda: prepare(start, checkpoints, command)) == 0
    shutil.copytree(start, undisturbed)
    counted = scratch / "steps"

    def count() -> None:
        steps = Steps(None)
        steps.watch()
        act(undisturbed, checkpoints)
        total = steps.count
        counted.write_text(str(total))

    assert forked(count) == 0
    total = int(counted.read_text())
    expected = scratch / "expected.json"
    assert forked(lambda: expected.write_text(repr(outcome(undisturbed, command)))) == 0

    tried = kills = 0
    for fatal in sorted({*range(0, total, stride), total - 1}):
        home = scratch / "home"
        shutil.copytree(start, home)

        def disturbed(home: Path = home, fatal: int = fatal) -> None:
            steps = Steps(fatal)
            steps.watch()
            act(home, checkpoints)

        def check(home: Path = home) -> None:
            with Registry(home) as opened:
                problems = opened.verify().problems
                assert problems == (), problems
            act(home, checkpoints)
            found = repr(outcome(home, command))
            assert found == expected.read_text(), "the repeat led elsewhere"

        ended = forked(disturbed)
        assert ended in (0, -signal.SIGKILL), f"step {fatal}: the command ended with {ended}"
        kills += ended != 0
        assert forked(check) == 0, f"killed before step {fatal} of {total}"
        tried += 1
        shutil.rmtree(home)
    print(json.dumps({"steps": total, "tried": tried, "kills": kills}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
