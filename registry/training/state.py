"""A training under way, between two steps: kept in the home, so that an interrupted one goes on."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from registry.errors import StorageError
from store.arrays import flush

_FORMAT = "expert-registry training 1"
_PARTS = ("changes", "first", "second")


@dataclass(frozen=True)
class State:
    """Where a training stands.

    Attributes:
        step: steps done.
        loss: the loss on held-out windows before the first.
        changes: of each router in whitened coordinates, float32 of shape (E, H).
        first: AdamW's first moments, of the same shapes.
        second: AdamW's second moments.
    """

    step: int
    loss: float
    changes: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]


def save(path: Path, state: State) -> None:
    """Write `path`, which appears whole or not at all, if its folder is there: an opt-out deletes it.

    Raises:
        StorageError: the disk is full or refuses.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {f"{part}.{n}": tensor for part in _PARTS for n, tensor in enumerate(getattr(state, part))}
    metadata = {"expert-registry": json.dumps({"format": _FORMAT, "step": state.step, "loss": state.loss})}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # two processes may do the same training at once
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata=metadata)
        flush(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        if not path.parent.is_dir():
            return
        partial.unlink(missing_ok=True)
        raise StorageError(f"{path} cannot be written: {error}", "free some space, then repeat the command") from error


def load(path: Path, shapes: list[tuple[int, ...]], steps: int) -> State | None:
    """Return what `save` wrote, or None where there is nothing, or nothing intact: training then begins anew."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {})["expert-registry"])
            parts = {part: tuple(file.get_tensor(f"{part}.{n}") for n in range(len(shapes))) for part in _PARTS}
            state = State(int(document["step"]), float(document["loss"]), **parts)
            known = document["format"] == _FORMAT
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None
    fits = all(
        tuple(tensor.shape) == shape and tensor.dtype == torch.float32 and bool(torch.isfinite(tensor).all())
        for part in parts.values()
        for tensor, shape in zip(part, shapes, strict=True)
    )
    return state if known and fits and 0 < state.step <= steps else None
