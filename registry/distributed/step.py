"""A step of a command as tasks of a cluster, and what a task does in the process that it runs in."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry import errors
from registry.distributed.node_kind import node_kind
from registry.errors import ClusterError, RegError
from registry.progress import Advance

_SECONDS = 0.25
"""Between two reports of a task."""


@dataclass(frozen=True)
class Task:
    """One part of a step; it may run several times, also at once, and must leave the same then.

    Attributes:
        name: its name in messages, such as `windows 0 to 47`.
        arguments: of the step's function, after what all tasks share.
        amount: units of progress.
    """

    name: str
    arguments: tuple[Any, ...]
    amount: int


@dataclass(frozen=True)
class Step:
    """Tasks that run one function.

    Attributes:
        label: of its progress.
        unit: of its progress; a task's progress in this unit is shown while it runs.
        function: called as `function(shared, *arguments, progress=…)`, in any process; importable there.
        shared: the first argument of every task.
        tasks: the tasks.
        folder: a folder that all nodes see, where tasks report progress.
        device: what tasks compute on.
    """

    label: str
    unit: str
    function: Callable[..., Any]
    shared: Any
    tasks: Sequence[Task]
    folder: Path
    device: str = "cpu"

    def board(self, number: int) -> Path:
        """Return the file in which a task reports its progress."""
        return self.folder / f".progress-{self.function.__name__}-{number}"


@dataclass(frozen=True)
class Finished:
    """A task that has ended.

    Attributes:
        task: the task.
        result: what the function returned.
        error: what it raised.
        remarks: sentences for the user.
        node: name of the machine it ran on.
        kind: the kind of that node (`node_kind`).
    """

    task: Task
    result: Any = None
    error: Exception | None = None
    remarks: tuple[str, ...] = ()
    node: str = ""
    kind: str = ""


@dataclass
class _Report:
    """The progress of a running task: remarks are kept, units of its step go to a file."""

    board: Path
    unit: str
    remarks: list[str] = field(default_factory=list)
    done: int = 0
    written: float = 0.0

    @contextmanager
    def progress(self, label: str, total: int, unit: str) -> Iterator[Advance]:
        if not unit:
            self.remarks.append(label)
        yield self._advance if unit == self.unit else lambda amount: None

    def _advance(self, amount: int) -> None:
        self.done += amount
        if time.monotonic() - self.written >= _SECONDS:
            self.written = time.monotonic()
            with suppress(OSError):  # the step has ended, or an opt-out deleted the folder
                self.board.write_text(str(self.done))


def run_task(
    shared: Any, function: Callable[..., Any], task: Task, board: Path, unit: str, threads: int, device: str
) -> tuple[Any, tuple[str, str, str | None] | None, tuple[str, ...], str, str]:
    """Run a task in this process, with as many threads of torch as the main process has.

    Returns:
        result; class, message and hint of an error for the user; remarks; the machine; its kind.
    """
    import torch

    torch.set_num_threads(threads)
    report = _Report(board, unit)
    result, failure = None, None
    try:
        if not board.parent.is_dir():
            raise ClusterError(
                f"{socket.gethostname()} does not see the folder {board.parent}",
                "name a folder on a file system that all nodes of the cluster share",
            )
        result = function(shared, *task.arguments, progress=report.progress)
    except RegError as error:
        failure = type(error).__name__, error.message, error.hint
    return result, failure, tuple(report.remarks), socket.gethostname(), node_kind(device)


def raised(failure: tuple[str, str, str | None]) -> RegError:
    """Return the error that a task raised."""
    name, message, hint = failure
    kind: Any = getattr(errors, name, RegError)
    error: RegError = kind(message, hint)
    return error
