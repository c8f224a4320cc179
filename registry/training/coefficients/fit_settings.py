"""Settings of a fit of coefficients."""

import math
from dataclasses import dataclass

from registry.errors import InvalidInputError


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit of coefficients.

    Attributes:
        tokens: tokens of text in all; files provide equal numbers of them.
        steps: steps of Adam, each on one batch; every window is used once before any is used again.
        lr: the highest learning rate, which bounds the change of a coefficient in one step; it falls to 0 as a cosine.
        seed: the seed of the choice of windows and of their order.
        batch_size: windows in a batch.
        seq_len: tokens in a window.
        device: a torch device, or None for the GPU if there is one.
    """

    tokens: int = 16_384
    steps: int = 30
    lr: float = 0.05
    seed: int = 0
    batch_size: int = 8
    seq_len: int = 256
    device: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("steps", 1), ("seed", 0), ("batch_size", 1), ("seq_len", 2)):
            if (value := getattr(self, name)) < least:
                raise InvalidInputError(f"{name} is {value}, the least is {least}", f"give {least} or more")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise InvalidInputError(
                f"lr is {self.lr}, it must be finite and more than 0", f"the default is {FitSettings.lr}"
            )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps))
