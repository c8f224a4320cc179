"""A process that does commands on a registry in children of its own, and kills them at a step of its choice.

It is forked before anything starts a thread, as a process may not be forked safely after that.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy.event
from sqlalchemy import Engine

Perform = Callable[[Path, dict[str, Any]], None]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"}


class Steps:
    """Counts steps (files opened for writing, made, moved, deleted; statements; commits), and dies before one."""

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


class Zygote:
    """Does commands in children.

    Args:
        perform: does a command (what JSON can carry) on the registry in a home.
    """

    def __init__(self, perform: Perform) -> None:
        ours, theirs = os.pipe()
        answers, told = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(theirs)
            os.close(answers)
            _serve(perform, ours, told)
        os.close(ours)
        os.close(told)
        self._orders, self._answers = os.fdopen(theirs, "w"), os.fdopen(answers)

    def run(self, home: Path, command: dict[str, Any], fatal: int | None) -> tuple[bool, int | None]:
        """Do a command, killed before step `fatal`; return whether it was killed, and else how many steps it had.

        Raises:
            AssertionError: it ended with an error.
        """
        self._orders.write(json.dumps([str(home), command, fatal]) + "\n")
        self._orders.flush()
        status, steps = json.loads(self._answers.readline())
        assert status in (0, -signal.SIGKILL), f"{command} ended with {status}"
        return status != 0, steps

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._answers.close()
        os.waitpid(self.process, 0)


def _serve(perform: Perform, orders: int, told: int) -> None:
    with os.fdopen(orders) as lines, os.fdopen(told, "w") as answers:
        for line in lines:
            home, command, fatal = json.loads(line)
            ours, theirs = os.pipe()
            child = os.fork()
            if child == 0:
                _act(perform, Path(home), command, fatal, theirs)
            os.close(theirs)
            _, status = os.waitpid(child, 0)
            with os.fdopen(ours) as counted:
                steps = counted.read()
            answers.write(json.dumps([os.waitstatus_to_exitcode(status), int(steps) if steps else None]) + "\n")
            answers.flush()
    os._exit(0)


def _act(perform: Perform, home: Path, command: dict[str, Any], fatal: int | None, theirs: int) -> None:
    try:
        steps = Steps(fatal)
        steps.watch()
        perform(home, command)
        os.write(theirs, str(steps.count).encode())
    except BaseException as error:
        print(f"{command}: {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)
