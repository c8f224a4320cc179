"""A process that does commands on a registry in children of its own, and kills them at a step of its choice.

It is forked before anything starts a thread, as a process may not be forked safely after that.
"""

import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import sqlalchemy.event
from sqlalchemy import Engine

Perform = Callable[[Path, dict[str, Any]], None]

_FORK = mp.get_context("fork")
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
        perform: does a command on the registry in a home.
    """

    def __init__(self, perform: Perform) -> None:
        self._orders, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(perform, self._orders, theirs))
        self._process.start()
        theirs.close()

    def run(self, home: Path, command: dict[str, Any], fatal: int | None) -> tuple[bool, int | None]:
        """Do a command, killed before step `fatal`; return whether it was killed, and else how many steps it had.

        Raises:
            AssertionError: it ended with an error.
        """
        self._orders.send((home, command, fatal))
        status, steps = self._orders.recv()
        assert status in (0, -signal.SIGKILL), f"{command} ended with {status}"
        return status != 0, steps

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.join()


def _serve(perform: Perform, ours: Connection, orders: Connection) -> None:
    ours.close()
    with suppress(EOFError):
        while True:
            counted, told = _FORK.Pipe(duplex=False)
            child = _FORK.Process(target=_act, args=(perform, *orders.recv(), told))
            child.start()
            told.close()
            child.join()
            orders.send((child.exitcode, counted.recv() if child.exitcode == 0 else None))


def _act(perform: Perform, home: Path, command: dict[str, Any], fatal: int | None, told: Connection) -> None:
    steps = Steps(fatal)
    steps.watch()
    perform(home, command)
    told.send(steps.count)
