"""Processes that a launcher started for one training, and what they agree on.

A launcher (torchrun, accelerate launch) starts one process for each device, numbers them in the environment, and ends
all if one fails. All run the same program: they read the same text, build the same model and train it together. The
main process, number 0, alone writes and prints. Messages between them are JSON and tensors; none is a pickle.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from registry.errors import InvalidInputError, RegError, first_line
from registry.progress import silent
from registry.workspace import Workspace

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that every launcher sets."""
_FOREIGN = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
_WAIT = timedelta(days=7)
"""Longest wait for another process: preparing a large model takes hours, and a launcher ends all if one dies."""
_GRACE = 5.0
"""Seconds that a worker waits before it tells an error: of one that all have, the main process tells meanwhile."""
_LOST = 20.0
"""Seconds that a process which has lost another waits for the launcher to end it: that other one tells why."""


@dataclass(frozen=True)
class Processes:
    """The processes of a training: their number, and that of this one."""

    count: int = 1
    rank: int = 0

    @property
    def is_main(self) -> bool:
        """This process is the main one."""
        return self.rank == 0

    def quiet(self, workspace: Workspace) -> Workspace:
        """Return a workspace that tells progress in the main process alone."""
        return workspace if self.is_main else replace(workspace, progress=silent)

    def of_main(self, value: Any) -> Any:
        """Return a JSON value of the main process in all processes, which all must ask for."""
        if self.count == 1:
            return value
        import torch

        data = json.dumps(value).encode() if self.is_main else b""
        shared = torch.zeros(self.most(len(data)), dtype=torch.uint8)
        if self.is_main:
            shared = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        torch.distributed.broadcast(shared, 0, _group)
        return json.loads(bytes(shared.tolist()))

    def most(self, value: int) -> int:
        """Return the largest value of all processes, which all must ask for."""
        if self.count == 1:
            return value
        import torch

        shared = torch.tensor(value, dtype=torch.int64)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX, _group)
        return int(shared)

    def check_same(self, digest: str) -> None:
        """Raise InvalidInputError unless all processes have read the same text with the same settings, of a digest."""
        number = int(digest[:15], 16)
        if self.most(number) != -self.most(-number):
            raise InvalidInputError(
                f"the {self.count} processes have read different text, or got different settings",
                "start all with the same command, on the same files and versions of libraries",
            )


_joined: Processes | None = None
_group: Any = None
"""What carries the messages of `Processes`. Its threads end with it, as nothing else holds it; DDP and FSDP keep the
group of theirs, and a thread that lets go of a tensor while the interpreter ends aborts the process."""
_round = 0


def check_alone(what: str) -> None:
    """Raise InvalidInputError if a launcher started several processes; `what` begins it: `routers alone train`."""
    with joined() as processes:
        if processes.count > 1:
            raise InvalidInputError(
                f"{what} in one process, and a launcher started {processes.count}",
                "repeat the command without the launcher",
            )


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes of the launcher, if it started several, and leave them when the context ends in all.

    Raises:
        InvalidInputError: the launcher was asked for what this program does itself.
        RegError: this process is a worker, and failed; its number stands in the message.
    """
    global _joined, _group, _round
    if _joined is not None or _from_environment() == 1:
        yield _joined or Processes()
        return
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
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    own = distributed.PrefixStore(f"training {_round}", store)
    distributed.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=_WAIT)
    _joined, _group = Processes(count, rank), distributed.new_group(backend="gloo", timeout=_WAIT)
    before: Any = None
    with suppress(ValueError):  # of another thread than the first
        # A launcher ends processes by it: they clean up their folders.
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield _joined
        _joined.most(0)  # all have ended well
    except Exception as error:
        if isinstance(error, RuntimeError) and not isinstance(error, RegError | torch.OutOfMemoryError):
            time.sleep(_LOST)  # a connection, most likely
        if rank == 0:
            raise
        time.sleep(_GRACE)
        why, hint = f"{type(error).__name__}: {first_line(error)}", None
        if isinstance(error, RegError):
            why, hint = error.message, error.hint
        raise RegError(f"process {rank} of {count} failed: {why}", hint or "repeat the command to resume") from error
    finally:
        _joined = None
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        distributed.destroy_process_group()
        _group = None


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
