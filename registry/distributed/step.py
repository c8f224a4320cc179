"""A step of a command as tasks of a cluster, and what a task does in the process that it runs in.

The bits of a pass depend on the kind of its node: processor, threads and libraries. Products of float32 matrices on 1
and on 3 threads differ in their last bits, and so do those of two generations of processors. Tasks therefore use as
many threads as the process that divides the work, and results of two kinds of nodes are not combined.
"""

import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from registry.errors import ClusterError, RegError
from registry.progress import Advance

_SECONDS = 0.25  # between two reports of a task
_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that choose among the instructions of a processor."""


@dataclass(frozen=True)
class Task:
    """A part of a step, named in messages; it may run several times, also at once, and must leave the same then."""

    name: str
    arguments: tuple[Any, ...]
    amount: int


@dataclass(frozen=True)
class Step:
    """Tasks that run one function.

    Attributes:
        unit: of its progress; a task's progress in this unit is shown while it runs.
        function: called as `function(shared, *arguments, progress=…)`, in any process; importable there.
        folder: a folder that all nodes see, where tasks report progress.
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
    """A task that has ended: its result or what it raised, remarks for the user, and the node with its kind."""

    task: Task
    result: Any
    error: RegError | None
    remarks: tuple[str, ...]
    node: str
    kind: str


def run_task(
    shared: Any, function: Callable[..., Any], task: Task, board: Path, unit: str, threads: int, device: str
) -> Finished:
    """Run a task with as many threads of torch as the main process has; an error for the user is returned."""
    import torch

    torch.set_num_threads(threads)
    result, failure = None, None
    remarks: list[str] = []
    done, written = 0, 0.0

    def advance(amount: int) -> None:
        nonlocal done, written
        done += amount
        if time.monotonic() - written >= _SECONDS:
            written = time.monotonic()
            with suppress(OSError):  # the step has ended, or an opt-out deleted the folder
                board.write_text(str(done))

    @contextmanager
    def progress(label: str, total: int, own_unit: str) -> Iterator[Advance]:
        if not own_unit:
            remarks.append(label)
        yield advance if own_unit == unit else lambda amount: None

    try:
        if not board.parent.is_dir():
            raise ClusterError(
                f"{socket.gethostname()} does not see the folder {board.parent}",
                "name a folder on a file system that all nodes of the cluster share",
            )
        result = function(shared, *task.arguments, progress=progress)
    except RegError as error:
        failure = error
    task = replace(task, arguments=())
    return Finished(task, result, failure, tuple(remarks), socket.gethostname(), node_kind(device))


def mixed_kinds(nodes: Mapping[str, str], differ: str, then: str = "") -> ClusterError:
    """Return the error of results from nodes of several kinds, given a node of each; `differ` says what may."""
    listed = "; ".join(f"{node} is {kind}" for kind, node in nodes.items())
    hint = f"use nodes of one kind, with the same libraries{then}"
    return ClusterError(f"the nodes are of different kinds, {differ}: {listed}", hint)


def node_kind(device: str, threads: int | None = None) -> str:
    """Return the kind of this node: processor or GPU, its instructions, threads of torch (default: now), libraries."""
    from importlib.metadata import version

    import torch

    libraries = f"torch {torch.__version__}, transformers {version('transformers')}"
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, {libraries}"
    chosen = "".join(f", {name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name))
    capability, threads = torch.backends.cpu.get_cpu_capability(), threads or torch.get_num_threads()
    return f"{device}: {_processor()}, {capability}, {threads} threads{chosen}, {libraries}"


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
