"""Proves: an interruption keeps the state after the last whole step, and never one from within a step."""

import math
from pathlib import Path

import pytest
import torch

from registry.errors import InvalidInputError
from registry.progress import silent
from registry.training.loop import Objective, finite, train
from registry.training.settings import TrainSettings
from tests.remarks import Remarks


class Distance(Objective):
    """The distance of four numbers from 1; an interruption comes in a step, counted from 0, before or after AdamW's."""

    settings: TrainSettings

    def __init__(self, before: int = -1, after: int = -1, broken: int = -1) -> None:
        self.settings = TrainSettings(steps=6, lr=0.1)
        self.parts = [torch.zeros(4).requires_grad_()]
        self.optimiser = torch.optim.AdamW(self.parts, lr=self.settings.lr)
        self._before, self._after, self._broken = before, after, broken

    def loss(self) -> float:
        return 1.0

    def gradient(self, step: int) -> float:
        if step == self._before:
            raise KeyboardInterrupt
        loss = (self.parts[0] - 1).square().sum() * (math.nan if step == self._broken else 1)
        loss.backward()
        return finite(float(loss.detach()), f"in step {step + 1}")

    def after_step(self, step: int) -> None:
        if step - 1 == self._after:
            raise KeyboardInterrupt


def test_an_interruption_keeps_the_last_whole_step(tmp_path: Path) -> None:
    whole, stopped, path = Distance(), Distance(before=3), tmp_path / "state.safetensors"
    losses, before = train(whole, None, silent)
    assert (len(losses), before) == (6, 1.0)
    assert losses[-1] < losses[0]
    with pytest.raises(KeyboardInterrupt):
        train(stopped, path, silent)
    again, heard = Distance(), Remarks()
    assert train(again, path, heard) == (losses, before)
    assert heard.sentences[0] == "an interrupted training goes on: 3 of 6 steps were done before"
    assert torch.equal(again.parts[0], whole.parts[0])


def test_an_interruption_within_a_step_keeps_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(Distance(after=3), path, silent)
    assert not path.exists()
    monkeypatch.setattr("registry.training.loop.SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(Distance(after=3), path, silent)
    heard = Remarks()
    assert train(Distance(), path, heard) == train(Distance(), None, silent)
    assert heard.sentences[0] == "an interrupted training goes on: 3 of 6 steps were done before"


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    broken = Distance(broken=2)
    with pytest.raises(InvalidInputError, match="the loss in step 3 is nan"):
        train(broken, tmp_path / "state.safetensors", silent)
    assert bool(torch.isfinite(broken.parts[0]).all())
