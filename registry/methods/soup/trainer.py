"""The loop of a soup's training (algorithm 2): that of `WeightTrainer`, with the domain weights of every step.

Shapes: B windows of a batch, k domains.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.methods.soup.model import Soup
from registry.methods.soup.text import SoupWindows
from registry.training.weight_trainer import WeightTrainer


@dataclass
class SoupTrainer(WeightTrainer):
    """The training of a soup: one step changes shared weights, all experts and the router together.

    Its loss on held-out windows is that of each domain's windows with all weight on the domain.

    Attributes:
        model: the soup.
        windows: windows of its domains.
    """

    model: Soup
    windows: SoupWindows

    def decays(self, part: torch.nn.Parameter) -> bool:
        """Tell whether weight decay applies to a weight."""
        return self.model.decays(part)

    def inputs(self, place: int) -> dict[str, Tensor]:
        """Return the domain weights of the step that a window belongs to."""
        step = place // (self.settings.batch_size * self.settings.accumulate)
        return {"domain_weights": self.windows.domain_weights[step].float()}

    def held_out_batches(self) -> Iterator[tuple[Int64[Tensor, "B"], dict[str, Tensor]]]:
        """Yield the numbers of held-out windows of one domain after the other, with all weight on the domain."""
        for domain, alone in enumerate(torch.eye(self.windows.domain_weights.shape[1])):
            own = self.windows.held_out[self.windows.held_out_domains == domain]
            for numbers in own.split(self.settings.batch_size):
                weights: Float[Tensor, "B k"] = alone.expand(len(numbers), -1)
                yield numbers, {"domain_weights": weights}
