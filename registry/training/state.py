"""A training under way, between two steps: kept in the home, so that an interrupted one goes on."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from registry.errors import StorageError
from registry.io.safetensors_writer import Stream, replace_shard
from registry.io.torch_blocks import to_block

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
    parts = {part: getattr(state, part) for part in _PARTS}
    streams = [
        Stream.of(f"{part}.{n}", to_block(one), "float32") for part, of in parts.items() for n, one in enumerate(of)
    ]
    document = {"format": _FORMAT, "step": state.step, "loss": state.loss}
    try:
        replace_shard(path, streams, {"expert-registry": json.dumps(document)})
    except StorageError:
        if path.parent.is_dir():
            raise


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
