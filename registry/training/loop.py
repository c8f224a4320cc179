"""The loop of every training: rates, steps, progress, the loss curve, and states from which it goes on.

What differs between trainings is an objective: what trains, the gradient of a step, the loss on held-out windows.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.errors import InvalidInputError
from registry.progress import Progress, remark
from registry.training import sharded, state
from registry.training.launcher import Processes
from registry.training.settings import GOES_ON, Settings

SAVE_SECONDS = 60.0
"""Seconds between two saved states of a training."""
REMARKS = 10
"""Number of remarks on the loss of a training."""
POINTS = 2000
"""Most numbers of a stored loss curve."""


class Objective(ABC):
    """A loss that a training lowers, step by step, and all that trains for it.

    Attributes:
        settings: its steps and their rates.
        parts: what trains, in the order of a saved state.
        optimiser: its optimiser, of whose groups `lr` is at first the highest rate.
        processes: the processes that train together.
        label: what the bar of the steps says.
        goes_on: beginning of the remark of one that was interrupted.
    """

    settings: Settings
    parts: Sequence[Tensor]
    optimiser: torch.optim.Optimizer
    processes = Processes()
    label = "training"
    goes_on = GOES_ON

    @abstractmethod
    def loss(self) -> float:
        """Return the loss (nats per token) on held-out windows, or raise InvalidInputError if it is not finite."""

    @abstractmethod
    def gradient(self, step: int) -> float:
        """Give what trains its gradients of a step, counted from 0, and return the loss before it.

        Raises InvalidInputError if the loss is not finite.
        """

    def after_step(self, step: int) -> None:  # noqa: B027 - most have nothing to do
        """Change what no gradient changes, after a step of the optimiser; its number is counted from 1."""

    def check_finite(self, when: str) -> None:
        """Raise InvalidInputError unless all that trains is finite, in all processes."""
        parts = (sharded.local(part) for part in self.parts)
        if self.processes.most(int(not all(bool(torch.isfinite(part).all()) for part in parts))):
            finite(math.nan, when)

    def remark_on_loss(self, progress: Progress, losses: Sequence[float]) -> None:
        """Remark on the mean loss of the latest steps, `REMARKS` times in a training."""
        step, every = len(losses), max(1, self.settings.steps // REMARKS)
        if step % every == 0:
            remark(progress, f"step {step} of {self.settings.steps}: loss {sum(losses[-every:]) / every:.4f}")


@dataclass(frozen=True)
class Losses:
    """Language-model losses of a training, in nats per token.

    `steps` are of every step, before its change, with the penalty if there is one; the others are on held-out windows.
    """

    steps: tuple[float, ...]
    before: float
    after: float


def train(objective: Objective, path: Path | None, progress: Progress) -> tuple[tuple[float, ...], float]:
    """Take the steps of a training, or those after an interruption; return their losses, and that before the first.

    `path` is the file to save states in from time to time, and when the user interrupts one process; None to save none,
    as in workers.

    Raises:
        InvalidInputError: a loss, or what trains, is NaN or infinite; the last saved state stays.
    """
    steps, processes = objective.settings.steps, objective.processes
    parts, optimiser = objective.parts, objective.optimiser
    rates = [group["lr"] for group in optimiser.param_groups]
    found = state.load(path, parts, steps, processes)
    if found is None:
        found = state.State(0, objective.loss(), ())
    else:
        found.restore(parts, optimiser, processes)
        remark(progress, f"{objective.goes_on}: {found.step} of {steps} steps were done before")
    before, losses, saved_at, is_whole = found.before, list(found.losses), time.monotonic(), True

    def save() -> None:
        objective.check_finite(f"after step {len(losses)}")
        state.save(path, parts, optimiser, before, losses)

    if found.step < steps:
        try:
            with progress(objective.label, steps, "step") as advance:
                advance(found.step)
                for number in range(found.step, steps):
                    for group, rate in zip(optimiser.param_groups, rates, strict=True):
                        group["lr"] = rate * objective.settings.rate(number)
                    loss = objective.gradient(number)
                    is_whole = False
                    optimiser.step()
                    optimiser.zero_grad()
                    objective.after_step(number + 1)
                    losses.append(loss)
                    is_whole = True
                    advance(1)
                    objective.remark_on_loss(progress, losses)
                    is_due = path is not None and time.monotonic() - saved_at >= SAVE_SECONDS
                    if processes.most(int(is_due)):
                        save()
                        saved_at = time.monotonic()
        except KeyboardInterrupt:
            if path is not None and losses and is_whole and processes.count == 1:
                save()
            raise
    objective.check_finite("after the last step")
    return tuple(losses), before


def finite(loss: float, where: str) -> float:
    """Return a loss, or raise InvalidInputError if it is NaN or infinite; `where` it is."""
    if not math.isfinite(loss):
        raise InvalidInputError(f"the loss {where} is {loss}", "give a smaller --lr, or compute with --dtype float32")
    return loss


def curve(losses: Losses) -> dict[str, Any]:
    """Return losses as a JSON document; of a long training the means of as many steps each are stored."""
    every = -(-len(losses.steps) // POINTS)
    groups = [losses.steps[start : start + every] for start in range(0, len(losses.steps), max(1, every))]
    means = [sum(group) / len(group) for group in groups]
    return {"held_out": {"before": losses.before, "after": losses.after}, "every": every, "loss": means}


def training_document(inputs: Mapping[str, Any], losses: Losses) -> dict[str, Any]:
    """Return the content of `expert_training.json`."""
    return {"format": 1, "training": dict(inputs)} | curve(losses)
