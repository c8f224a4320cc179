"""Processes of one training: which one this is, and what they send one another.

A launcher (torchrun, accelerate launch) starts one process for each device and numbers them in the environment. The
main process, number 0, opens the registry, prepares, writes and prints. The others are its workers: they wait for a job
(`training/job.py`), train with it, and wait for its outcome. Messages are JSON in the launcher's key-value store, and
tensors; none is a pickle.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from registry.errors import InvalidInputError, RegError, first_line

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that every launcher sets."""
_FOREIGN = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
_JOB, _ENDED_WELL, _FAILURE = "job", "ended well", "failure"
_WAIT = timedelta(days=7)
"""Longest wait for another process: preparing a large model takes hours, and a launcher ends all if one dies."""
_GRACE = timedelta(seconds=5)
"""Longest wait for what another process says of its failure."""


@dataclass(frozen=True)
class Processes:
    """The processes of a training: their number, that of this one, and the key-value store that several share."""

    count: int = 1
    rank: int = 0
    store: Any = None

    @property
    def is_main(self) -> bool:
        """This process is the main one."""
        return self.rank == 0

    def check_alone(self, what: str) -> None:
        """Raise InvalidInputError if there are several; `what` begins its message, such as `routers alone train`."""
        if self.count > 1:
            raise InvalidInputError(
                f"{what} in one process, and a launcher started {self.count}",
                "repeat the command without the launcher",
            )

    def send(self, message: dict[str, Any]) -> None:
        """Send a message from the main process to all workers."""
        self.store.set(_JOB, json.dumps(message))

    def receive(self) -> dict[str, Any] | None:
        """Wait for the message of the main process; None if that failed before it sent one."""
        message: dict[str, Any] | None = self._find(_JOB, _WAIT)
        return message

    def most(self, value: int) -> int:
        """Return the largest value of all processes, which all must ask for."""
        if self.count == 1:
            return value
        import torch

        shared = torch.tensor(value, dtype=torch.int64)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return int(shared)

    def conclude(self, *, well: bool) -> None:
        """Let workers know the outcome of the main process."""
        if not well:
            self.store.compare_set(_JOB, "", "null")  # unless it was sent
        self.store.set(_ENDED_WELL, json.dumps(well))

    def ends_well(self) -> bool:
        """Wait for the outcome of the main process."""
        return self._find(_ENDED_WELL, _WAIT) is True

    def has_failed(self) -> bool:
        """Tell whether the main process failed too, or does so soon."""
        return self._find(_ENDED_WELL) is False

    def report(self, error: BaseException) -> RegError:
        """Let the main process know why this worker failed, and return that as an error."""
        why, hint = f"{type(error).__name__}: {first_line(error)}", ""
        if isinstance(error, RegError):
            why, hint = error.message, error.hint or ""
        told = f"process {self.rank} of {self.count} failed: {why}", hint or "repeat the command to resume"
        self.store.set(_FAILURE, json.dumps(told))
        return RegError(*told)

    def failure(self) -> RegError | None:
        """Return why a worker failed, or None if none says so soon."""
        found = self._find(_FAILURE)
        return None if found is None else RegError(*found)

    def _find(self, key: str, longest: timedelta = _GRACE) -> Any:
        """Return a value of the store, or None if there is none in time, or no store any more."""
        with suppress(RuntimeError):  # of torch
            self.store.wait([key], longest)
            return json.loads(self.store.get(key))
        return None


_joined: Processes | None = None
_round = 0


def is_worker() -> bool:
    """Tell whether a launcher started this process as a worker of another."""
    return _from_environment() > 1 and int(os.environ["RANK"]) > 0


@contextmanager
def leading() -> Iterator[Processes]:
    """Join the workers as their main process, if a launcher started any; they get the outcome when the context ends.

    Raises:
        InvalidInputError: this process is a worker, or the launcher was asked for what this program does itself.
        RegError: a worker failed.
    """
    if _joined is not None or _from_environment() == 1:
        yield _joined or Processes()
        return
    if is_worker():
        raise InvalidInputError(
            f"this process is number {os.environ['RANK']} of a training, and the first one trains with the registry",
            "call registry.training.run_worker() in all others",
        )
    with joined() as processes:
        try:
            yield processes
        except BaseException as error:
            broken = isinstance(error, RuntimeError) and not isinstance(error, RegError)  # such as a lost connection
            failure = processes.failure() if broken else None
            processes.conclude(well=False)
            if failure is not None:
                raise failure from error
            raise
        processes.conclude(well=True)


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the other processes of the launcher, and leave them when the context ends (errors as `leading`)."""
    global _joined, _round
    for name in _FOREIGN:
        if os.environ.get(name, "").lower() == "true":
            raise InvalidInputError(
                f"the launcher asks for sharding ({name}), which this program sets up itself",
                "launch without it, and give --fsdp: torchrun --nproc-per-node N -m cli … --fsdp",
            )
    import torch

    distributed: Any = torch.distributed  # its names are not all exported
    store, rank, count = next(iter(distributed.rendezvous("env://", timeout=_WAIT)))
    _round += 1
    own = distributed.PrefixStore(f"training {_round}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=_WAIT)
    _joined = Processes(count, rank, own)
    try:
        yield _joined
    finally:
        _joined = None
        distributed.destroy_process_group()


def own_device(device: str) -> str:
    """Return the device of this process, and let libraries use it (InvalidInputError: more processes than GPUs)."""
    if device != "cuda" or _joined is None:
        return device
    import torch

    number, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= gpus:
        raise InvalidInputError(
            f"process {number + 1} of this machine has no GPU of its own, there are {gpus}",
            f"start as many processes as there are GPUs: torchrun --nproc-per-node {gpus} -m cli …",
        )
    torch.cuda.set_device(number)
    return device


def _from_environment() -> int:
    """Return the number of processes that a launcher started, or 1."""
    values = [os.environ.get(name, "") for name in _VARIABLES]
    return int(values[1]) if all(values) and values[0].isdecimal() and values[1].isdecimal() else 1
