"""A Ray cluster: the nodes that tasks run on. Ray is imported where it is used, since it is an extra.

A task whose process or node is lost runs again elsewhere; results are found under names that follow from their content,
so that running twice changes nothing. Nodes share a file system, and tensor parallelism is never used: it changes bits.
"""

import importlib.util
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from registry.distributed.step import Finished, Step, run_task
from registry.errors import ClusterError, InvalidInputError, StorageError, first_line
from registry.progress import Progress, remark

LOCAL = "local"  # the address of a cluster on this machine, which ends with the command
RETRIES = 3  # times that a task runs again after its process or node was lost
OBJECT_BYTES = 128 * 2**20
"""Memory for objects of a cluster on this machine: tasks exchange files, and tokens alone are objects."""

POLL_SECONDS = 0.25
ENDING_SECONDS = 1.0
"""Seconds that tasks have to end before they are cancelled.

After an error, others often end at the same moment, and Ray may abort this process if it cancels one that does:
https://github.com/ray-project/ray/issues/54846
"""

LOST_SECONDS = 60.0  # seconds without a node that could run a task, after which a step is given up
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*"}
"""Variables that Ray reads when it is imported: it reports nothing, and prints nothing to stdout, where results go."""

_AGAIN = "start it again: what is finished is kept"


@dataclass(frozen=True)
class Cluster:
    """Nodes that tasks run on, each on as many processors as `threads` of torch, and on `gpus`, or a part of one."""

    address: str
    threads: int
    gpus: float = 0.0

    @property
    def slots(self) -> int:
        """Tasks that run at once, 1 or more."""
        return max(1, self._slots())

    @property
    def machines(self) -> set[str]:
        """Names of the machines that nodes run on."""
        return {str(node["NodeManagerHostname"]) for node in _nodes()}

    def device(self, named: str | None) -> str:
        """Return the device of tasks: `named`, else a GPU if they take one (InvalidInputError: they take none)."""
        if named is not None and named.startswith("cuda") and not self.gpus:
            raise InvalidInputError(f"tasks take no GPU, and --device is {named}", "add --num-gpus 1")
        return named or ("cuda" if self.gpus else "cpu")

    def run(self, step: Step, progress: Progress) -> Iterator[Finished]:
        """Run the tasks of a step, and yield each when it has ended, in any order; a remark of a task is passed on.

        If the caller stops early, or is interrupted, running tasks are cancelled (ClusterError: a task lost its process
        or node too often, or there is no node that could run it).
        """
        import ray

        if not step.tasks:
            return
        self._require_node()
        options: dict[str, Any] = {"max_retries": RETRIES, "retry_exceptions": False, "name": f"reg {step.label}"}
        options |= {"num_gpus": self.gpus, "num_cpus": 1} if self.gpus else {"num_cpus": self.threads}
        remote: Any = ray.remote(run_task).options(**options)
        shared = ray.put(step.shared)  # once for all tasks, kept by this process's node
        waiting: dict[Any, int] = {}
        try:
            with progress(step.label, sum(task.amount for task in step.tasks), step.unit) as advance:
                shown = [0] * len(step.tasks)

                def show(number: int, done: int) -> None:
                    if done > shown[number]:  # a task that runs again begins at 0
                        advance(done - shown[number])
                        shown[number] = done

                for number, task in enumerate(step.tasks):
                    call = step.function, task, step.board(number), step.unit, self.threads, step.device
                    waiting[remote.remote(shared, *call)] = number
                seen = time.monotonic()
                while waiting:
                    ready, _ = ray.wait([*waiting], num_returns=1, timeout=POLL_SECONDS)
                    for reference in ready:
                        number = waiting[reference]
                        finished = self._finished(step, number, reference)
                        del waiting[reference]
                        show(number, step.tasks[number].amount)
                        for text in finished.remarks:
                            remark(progress, text)
                        yield finished
                    if not ready:
                        for number in waiting.values():
                            with suppress(OSError, ValueError):
                                show(number, min(int(step.board(number).read_text()), step.tasks[number].amount))
                        seen = self._look(step, seen)
        finally:
            _cancel(waiting)
            for number in range(len(step.tasks)):
                with suppress(OSError):
                    step.board(number).unlink(missing_ok=True)

    def results(self, step: Step, progress: Progress) -> list[Finished]:
        """Run the tasks of a step, and return all in its order; the first error of one is raised (errors as `run`)."""
        done: dict[int, Finished] = {}
        for finished in self.run(step, progress):
            if finished.error is not None:
                raise finished.error
            done[id(finished.task)] = finished
        return [done[id(task)] for task in step.tasks]

    def _finished(self, step: Step, number: int, reference: Any) -> Finished:
        import ray
        from ray import exceptions

        task = step.tasks[number]
        try:
            finished: Finished = ray.get(reference)
        except exceptions.RayTaskError as error:  # none of ours: its own class, without Ray's traceback
            raise error.cause from None
        except exceptions.RayError as error:
            raise ClusterError(
                f"{step.label} {task.name}: its process was lost {RETRIES + 1} times ({type(error).__name__})",
                f"look at the free memory of the nodes, then {_AGAIN}",
            ) from None
        return replace(finished, task=task)

    def _slots(self) -> int:
        count = 0
        for resources in (node["Resources"] for node in _nodes()):
            processors = int(resources.get("CPU", 0.0) // (1 if self.gpus else self.threads))
            count += min(processors, int(resources.get("GPU", 0.0) / self.gpus)) if self.gpus else processors
        return count

    def _require_node(self) -> None:
        if self._slots():
            return
        largest = max((int(node["Resources"].get("CPU", 0.0)) for node in _nodes()), default=0)
        if self.gpus:
            raise ClusterError(f"no node of {self.address} has {self.gpus:g} free GPUs", "start a node with one")
        raise ClusterError(
            f"a task computes on {self.threads} threads, as this process would, and no node of {self.address} has so "
            f"many processors (the largest has {largest})",
            f"set OMP_NUM_THREADS={max(1, largest)} before reg",
        )

    def _look(self, step: Step, seen: float) -> float:
        """Return when a node that could run a task was last seen."""
        now = time.monotonic()
        if now - seen > LOST_SECONDS / 6 and self._slots():
            return now
        if now - seen > LOST_SECONDS:
            raise ClusterError(f"{step.label}: no node of {self.address} is left that could go on", _AGAIN)
        return seen


@contextmanager
def connect(address: str, *, gpus: float = 0.0) -> Iterator[Cluster]:
    """Connect to a Ray cluster, or start one on this machine; each task takes so many `gpus`.

    `address` is `local`, that of a cluster's head, HOST:PORT, or `auto` for the cluster that this node belongs to
    (StorageError, ClusterError: Ray is not installed, or there is no cluster there).
    """
    if importlib.util.find_spec("ray") is None:
        raise StorageError("--ray needs Ray, which is not installed", "run: pip install 'expert-registry[ray]'")
    import torch

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if is_mine := not ray.is_initialized():
        if address == LOCAL:
            settings |= {"num_cpus": len(os.sched_getaffinity(0)), "object_store_memory": OBJECT_BYTES}
        else:
            settings.pop("include_dashboard")
        try:
            ray.init(address=address, **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ClusterError(
                f"there is no Ray cluster at {address}: {first_line(error)}",
                "start one: ray start --head; or use this machine alone: --ray local",
            ) from error
    try:
        yield Cluster(address, torch.get_num_threads(), gpus)
    finally:
        if is_mine:
            ray.shutdown()


def _nodes() -> list[dict[str, Any]]:
    """Return what Ray says of each node that is alive."""
    import ray

    list_nodes: Any = ray.nodes
    return [node for node in list_nodes() if node["Alive"]]


def _cancel(waiting: Mapping[Any, int]) -> None:
    """Cancel tasks that do not end by themselves, and wait until Ray counts them as ended."""
    if not waiting:
        return
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):
        _, running = ray.wait([*waiting], num_returns=len(waiting), timeout=ENDING_SECONDS)
        for reference in running:
            ray.cancel(reference, force=True)
        if running:
            ray.wait(running, num_returns=len(running), timeout=10)
