"""The loop of a SIMoE's training: that of `WeightTrainer`, with the multiplier of every step."""

from dataclasses import dataclass

import torch

from registry.methods.simoe.model import Simoe
from registry.methods.simoe.text import SimoeWindows
from registry.training.weight_trainer import WeightTrainer


@dataclass
class SimoeTrainer(WeightTrainer):
    """The training of a SIMoE: one step changes D, gates and router by the gradient, then λ by dual ascent.

    Attributes:
        model: the SIMoE.
        windows: windows that are longer than a prompt.
    """

    model: Simoe
    windows: SimoeWindows

    def decays(self, part: torch.nn.Parameter) -> bool:
        """Tell whether weight decay applies to a weight: to D."""
        return any(part is delta for delta in self.model.deltas)

    def rate_of(self, part: torch.nn.Parameter) -> float:
        """Return the highest learning rate of a weight."""
        is_gate = part is self.model.log_alpha or part is self.model.router
        return self.model.settings.gate_lr if is_gate else self.settings.lr

    def after_step(self) -> None:
        """Take a step of dual ascent."""
        self.model.ascend(int(self._optimiser.state[self.model.log_alpha]["step"]))
