"""State of a training between two steps, kept in the home so that an interrupted training can continue."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from registry.errors import StorageError
from registry.io.safetensors_file import Stream, replace_shard
from registry.training.sharding import whole_stream

_FORMAT = "expert-registry training 1"
_PARTS = ("changes", "first", "second")


@dataclass(frozen=True)
class State:
    """The state of a training after some steps.

    Attributes:
        step: the number of completed steps.
        loss: the loss on held-out windows before the first step.
        changes: what trains: the change of each router in whitened coordinates, (E, H); or the weights; both float32;
            or coefficients, float64.
        first: the optimiser's first moments, of the same shapes.
        second: its second moments, of the same shapes.
        losses: the loss of every completed step, where a training keeps them.
    """

    step: int
    loss: float
    changes: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    losses: tuple[float, ...] = ()


def save(path: Path, state: State) -> None:
    """Write `path`, which appears whole or not at all; nothing is written if an opt-out has deleted its folder.

    Raises:
        StorageError: the disk is full or refuses.
    """
    document = {"format": _FORMAT, "step": state.step, "loss": state.loss, "losses": state.losses}
    try:
        replace_shard(path, streams_of(state), {"expert-registry": json.dumps(document)})
    except StorageError:
        if path.parent.is_dir():
            raise


def streams_of(state: State) -> list[Stream]:
    """Return the tensors of a state to write; sharded ones are gathered, which all processes must do in one order."""
    return [
        whole_stream(f"{part}.{layer}", tensor) for part in _PARTS for layer, tensor in enumerate(getattr(state, part))
    ]


def load(path: Path, shapes: list[tuple[int, ...]], steps: int, dtype: torch.dtype = torch.float32) -> State | None:
    """Read the state that `save` wrote; None if there is no intact file, so that training starts from the beginning.

    Args:
        path: the file.
        shapes: the shape of each tensor that trains.
        steps: the steps of the whole training.
        dtype: of what trains.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {})["expert-registry"])
            parts = {part: tuple(file.get_tensor(f"{part}.{layer}") for layer in range(len(shapes))) for part in _PARTS}
            losses = tuple(float(loss) for loss in document.get("losses", ()))
            state = State(int(document["step"]), float(document["loss"]), **parts, losses=losses)
            readable = document["format"] == _FORMAT
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None
    fits = all(
        tuple(tensor.shape) == shape and tensor.dtype == dtype and bool(torch.isfinite(tensor).all())
        for part in parts.values()
        for tensor, shape in zip(part, shapes, strict=True)
    )
    return state if readable and fits and 0 < state.step <= steps else None
