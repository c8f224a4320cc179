"""Settings of the training of a SIMoE."""

from dataclasses import dataclass
from typing import Any

from registry.errors import InvalidInputError
from registry.training.settings import WeightTraining, setting

OVERLAP = 5e-5
"""β where nothing is given: the best of 0, 5e-6, 5e-5 and 5e-4 in SIMoE's slides."""


@dataclass(frozen=True)
class SimoeTraining(WeightTraining):
    """Settings of the training of a SIMoE, beyond those of `WeightTraining`.

    The learning rate and the weight decay are those of the shared weights, which decay towards the base model. The seed
    is of the gates' and the router's first values and of the masks of each step too.

    Attributes:
        experts: n, the number of experts, each with a mask of its own.
        sparsity: τ, the least share of zeros in the masks, from 0 to below 1.
        overlap: β, weight of the orthogonal penalty, the layers' mean ‖Z Zᵀ - I‖, in the loss; None for 5e-5, or 0 with
            one expert, which takes none: its mask has no other to overlap with, and |‖z‖² - 1| alone would only repeat
            the sparsity.
        prompt_tokens: first tokens of a window, which the router sees; the loss counts those after them.
        gate_lr: the highest learning rate of log α of the gates, and of the router.
        dual_lr: size of a step of the multiplier λ that enforces the sparsity.
    """

    experts: int = setting(8, least=1)
    sparsity: float = 0.75
    overlap: float | None = setting(None, above=False)
    prompt_tokens: int = setting(32, least=1)
    gate_lr: float = setting(0.1, above=True)
    dual_lr: float = setting(0.01, above=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sparsity < 1:
            raise InvalidInputError(
                f"sparsity is {self.sparsity}, it must be from 0 to below 1: masks of zeros alone train nothing",
                "give --sparsity 0.75",
            )
        if self.experts == 1 and self.overlap:
            raise InvalidInputError(
                f"overlap is {self.overlap}, and one mask has no other to overlap with",
                "drop --overlap, or give --experts 2 or more",
            )
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
        names = ("experts", "sparsity", "prompt_tokens", "gate_lr", "dual_lr")
        own = {name: getattr(self, name) for name in names}
        # in earlier documents `overlap` and `orthogonality` are weights of other penalties, of all layers at once
        return super().document(device, dtype) | own | {"layer_orthogonality": self.beta}
