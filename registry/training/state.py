"""State of a training between two steps, kept in the home so that an interrupted training can continue.

It is a safetensors file: what trains, and both moments of its optimiser. Of weights that are sharded it has the whole.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from registry.errors import StorageError
from registry.io.safetensors_file import replace_shard
from registry.training import sharded
from registry.training.launcher import Processes

_FORMAT = "expert-registry training 1"
_PARTS = ("changes", "exp_avg", "exp_avg_sq")
_NAMES = ("changes", "first", "second")
"""Parts of a state, and their names in its file."""


@dataclass(frozen=True)
class State:
    """The state of a training after some steps.

    Attributes:
        step: the number of completed steps; 0 where nothing was saved.
        before: the loss on held-out windows before the first step.
        losses: the loss of every completed step.
        tensors: what trains, and the optimiser's first and second moments of it, each in the order of the optimiser;
            in the main process alone.
    """

    step: int
    before: float
    losses: Sequence[float]
    tensors: tuple[Sequence[Tensor], ...] = ((), (), ())

    def restore(self, parts: Sequence[Tensor], optimiser: torch.optim.Optimizer, processes: Processes) -> None:
        """Give what trains, and its optimiser, the values of this state; all processes take those of the main one."""
        for number, part in enumerate(parts):
            value, *moments = (
                sharded.spread(tensors[number] if tensors else None, part, processes) for tensors in self.tensors
            )
            with torch.no_grad():
                part.copy_(value)
            own = dict(zip(_PARTS[1:], moments, strict=True))
            optimiser.state[part] = {"step": torch.tensor(float(self.step)), **own}


def save(
    path: Path | None,
    parts: Sequence[Tensor],
    optimiser: torch.optim.Optimizer,
    before: float,
    losses: Sequence[float],
) -> None:
    """Write the state to `path`, which appears whole or not at all; without a path help to gather what is sharded.

    Nothing is written if an opt-out has deleted its folder (StorageError: the disk is full or refuses).
    """
    streams = []
    for name, key in zip(_NAMES, _PARTS, strict=True):
        for number, part in enumerate(parts):
            tensor = part if key == "changes" else optimiser.state[part].get(key)
            if tensor is None:  # without a gradient so far
                tensor = torch.zeros_like(part)
            streams.append(sharded.stream_of(f"{name}.{number}", sharded.array_of(tensor)))
    if path is None:
        sharded.write(streams, None)
        return
    document = {"format": _FORMAT, "step": len(losses), "loss": before, "losses": list(losses)}
    try:
        replace_shard(path, streams, {"expert-registry": json.dumps(document)})
    except StorageError:
        if path.parent.is_dir():
            raise


def load(path: Path | None, parts: Sequence[Tensor], steps: int, processes: Processes) -> State | None:
    """Read the state that `save` wrote of so many steps; None if there is no intact file, to start from the beginning.

    `parts` are what trains, whose shapes and dtypes the state must have. All processes get that of the main one,
    workers without tensors.
    """
    state = _read(path, parts, steps)
    head = processes.of_main(None if state is None else [state.step, state.before, state.losses])
    return state if head is None or state is not None else State(*head)


def _read(path: Path | None, parts: Sequence[Tensor], steps: int) -> State | None:
    from safetensors import SafetensorError, safe_open

    if path is None or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {})["expert-registry"])
            tensors = tuple([file.get_tensor(f"{name}.{number}") for number in range(len(parts))] for name in _NAMES)
            losses = [float(loss) for loss in document["losses"]]
            state = State(int(document["step"]), float(document["loss"]), losses, tensors)
            readable = document["format"] == _FORMAT and state.step == len(losses)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None
    fits = all(
        (tensor.shape, tensor.dtype) == (like.shape, like.dtype) and bool(torch.isfinite(tensor).all())
        for own in tensors
        for tensor, like in zip(own, parts, strict=True)
    )
    return state if readable and fits and 0 < state.step <= steps else None
