"""Settings of the training of a SIMoE."""

from dataclasses import dataclass
from typing import Any

from registry.errors import InvalidInputError
from registry.training.settings import WeightTraining, check_finite, check_least

OVERLAP = 0.1
"""Weight of the masks' overlap in the loss where nothing is given; our choice."""


@dataclass(frozen=True)
class SimoeTraining(WeightTraining):
    """Settings of the training of a SIMoE, beyond those of `WeightTraining`.

    The learning rate and the weight decay are those of the shared weights, which decay towards the base model. The seed
    is of the gates' and the router's first values and of the masks of each step too.

    Attributes:
        experts: n, the number of experts, each with a mask of its own.
        sparsity: τ, the least share of zeros in the masks, from 0 to below 1.
        overlap: β, weight of the masks' mean overlap in the loss; None for 0.1, or 0 with one expert.
        prompt_tokens: first tokens of a window, which the router sees; the loss counts those after them.
        gate_lr: the highest learning rate of log α of the gates, and of the router.
        dual_lr: size of a step of the multiplier λ that enforces the sparsity.
    """

    experts: int = 8
    sparsity: float = 0.75
    overlap: float | None = None
    prompt_tokens: int = 32
    gate_lr: float = 0.1
    dual_lr: float = 0.1

    def __post_init__(self) -> None:
        check_least(self, experts=1, prompt_tokens=1)
        if not 0 <= self.sparsity < 1:
            raise InvalidInputError(
                f"sparsity is {self.sparsity}, it must be from 0 to below 1: masks of zeros alone train nothing",
                "give --sparsity 0.75",
            )
        if self.overlap is not None:
            check_finite("overlap", self.overlap, str(OVERLAP), zero=True)
        if self.experts == 1 and self.overlap:
            raise InvalidInputError(
                f"overlap is {self.overlap}, and one mask has no other to overlap with",
                "drop --overlap, or give --experts 2 or more",
            )
        check_finite("gate_lr", self.gate_lr, str(SimoeTraining.gate_lr))
        check_finite("dual_lr", self.dual_lr, str(SimoeTraining.dual_lr))
        super().__post_init__()
        self.check_window(self.seq_len)

    def check_window(self, seq_len: int) -> None:
        """Raise InvalidInputError unless a window has tokens after the prompt."""
        if self.prompt_tokens >= seq_len:
            raise InvalidInputError(
                f"prompt_tokens is {self.prompt_tokens}, and a window has {seq_len} tokens: none is left to predict",
                f"give --prompt-tokens {max(1, seq_len // 8)}"
                + (", or a larger --seq-len" if seq_len == self.seq_len else ""),
            )

    @property
    def beta(self) -> float:
        """β."""
        return (OVERLAP if self.experts > 1 else 0.0) if self.overlap is None else self.overlap

    def document(self, device: str, dtype: str) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved."""
        names = ("experts", "sparsity", "overlap", "prompt_tokens", "gate_lr", "dual_lr")
        return super().document(device, dtype) | {name: getattr(self, name) for name in names} | {"overlap": self.beta}
