"""State of a training between two steps, kept in the home so that an interrupted training can continue."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.errors import StorageError
from registry.io.safetensors_file import Stream, replace_shard
from registry.progress import Progress, remark
from registry.training.processes import Processes
from registry.training.settings import GOES_ON, FitSettings, TrainSettings
from registry.training.sharding import array_of, spread, stream_of

SAVE_SECONDS = 60.0
"""Seconds between two saved states of a training."""
REMARKS = 10
"""Number of remarks on the loss of a training."""
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
        losses: the loss of every completed step.
    """

    step: int
    loss: float
    changes: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    losses: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        step: int,
        loss: float,
        parameters: Sequence[Tensor],
        optimiser: torch.optim.Optimizer,
        losses: Sequence[float] = (),
    ) -> "State":
        """Return the state after a step; its tensors change with the next one, and sharded ones are not gathered."""

        def moments(name: str) -> tuple[Tensor, ...]:
            found = [(optimiser.state[part].get(name), part) for part in parameters]  # None without a gradient so far
            return tuple((torch.zeros_like(part) if of is None else of).detach() for of, part in found)

        changes = tuple(part.detach() for part in parameters)
        return cls(step, loss, changes, moments("exp_avg"), moments("exp_avg_sq"), tuple(losses))

    def copied(self) -> "State":
        """Return the same with copies of all tensors, on the CPU."""
        parts: dict[str, Any] = {part: tuple(one.cpu().clone() for one in getattr(self, part)) for part in _PARTS}
        return replace(self, **parts)

    def remark_on(self, progress: Progress, steps: int, goes_on: str = GOES_ON) -> None:
        """Tell the user that a training goes on from this state."""
        remark(progress, f"{goes_on}: {self.step} of {steps} steps were done before")

    def restore(
        self, parameters: Sequence[Tensor], optimiser: torch.optim.Optimizer, processes: Processes | None = None
    ) -> None:
        """Give what trains, and its optimiser, the values of this state; all processes take those of the main one."""
        for number, part in enumerate(parameters):
            value, first, second = (
                spread(tensors[number] if tensors else None, part, processes or Processes())
                for tensors in (self.changes, self.first, self.second)
            )
            with torch.no_grad():
                part.copy_(value)
            step = torch.tensor(float(self.step))
            optimiser.state[part] = {"step": step, "exp_avg": first, "exp_avg_sq": second}


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
        stream_of(f"{part}.{layer}", array_of(tensor))
        for part in _PARTS
        for layer, tensor in enumerate(getattr(state, part))
    ]


def load(path: Path | None, parameters: Sequence[Tensor], steps: int) -> State | None:
    """Read the state that `save` wrote of so many steps; None if there is no intact file, to start from the beginning.

    `parameters` are what trains, whose shapes and dtypes the state must have.
    """
    from safetensors import SafetensorError, safe_open

    if path is None or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {})["expert-registry"])
            numbers = range(len(parameters))
            parts = {part: tuple(file.get_tensor(f"{part}.{number}") for number in numbers) for part in _PARTS}
            losses = tuple(float(loss) for loss in document.get("losses", ()))
            state = State(int(document["step"]), float(document["loss"]), **parts, losses=losses)
            readable = document["format"] == _FORMAT
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None
    fits = all(
        (tensor.shape, tensor.dtype) == (like.shape, like.dtype) and bool(torch.isfinite(tensor).all())
        for part in parts.values()
        for tensor, like in zip(part, parameters, strict=True)
    )
    return state if readable and fits and 0 < state.step <= steps else None


def remark_on_loss(progress: Progress, step: int, steps: int, losses: Sequence[float]) -> None:
    """Remark on the mean loss of the latest steps, `REMARKS` times in a training."""
    every = max(1, steps // REMARKS)
    if step % every == 0:
        latest = losses[-every:]
        remark(progress, f"step {step} of {steps}: loss {sum(latest) / len(latest):.4f}")


def take_steps(
    optimiser: torch.optim.Optimizer,
    settings: TrainSettings | FitSettings,
    step: Callable[[int], float],
    loss: Callable[[], float],
    path: Path | None,
    progress: Progress,
) -> State:
    """Take the steps of a training, or those after an interruption, each at its rate, and return the last state.

    Of a fit every state is saved, and no loss is remarked on.

    Args:
        optimiser: the optimiser, of one group.
        step: takes a step, counted from 0, and returns its loss.
        loss: returns the loss on held-out windows, before the first step.
        path: the file to save states in from time to time, and when the user interrupts; None to save none.
    """
    (group,) = optimiser.param_groups
    steps, is_fit = settings.steps, isinstance(settings, FitSettings)
    state = load(path, group["params"], steps)
    if state is None:
        state = State(0, loss(), (), (), ())
    else:
        state.restore(group["params"], optimiser)
        state.remark_on(progress, steps, "an interrupted fit goes on" if is_fit else GOES_ON)
    saved_at = time.monotonic()
    try:
        with progress("fitting coefficients" if is_fit else "training routers", steps, "step") as advance:
            advance(state.step)
            for number in range(state.step, steps):
                group["lr"] = settings.rate(number)
                losses = (*state.losses, step(number))
                # copied, so that a step which is interrupted does not change it
                state = State.of(number + 1, state.loss, group["params"], optimiser, losses).copied()
                advance(1)
                if not is_fit:
                    remark_on_loss(progress, state.step, steps, losses)
                if path is not None and (is_fit or time.monotonic() - saved_at >= SAVE_SECONDS):
                    save(path, state)
                    saved_at = time.monotonic()
    except KeyboardInterrupt:
        if path is not None and state.step:
            save(path, state)
        raise
    return state
