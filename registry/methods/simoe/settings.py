"""Settings of the training of a SIMoE."""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO
from registry.training.expert.expert_settings import FREE, ExpertTraining

OVERLAP = 0.1
"""Weight of the masks' overlap in the loss where nothing is given; our choice."""
_OWN = ("experts", "sparsity", "overlap", "prompt_tokens", "gate_lr", "dual_lr")


@dataclass(frozen=True)
class SimoeTraining:
    """Settings of the training of a SIMoE.

    Attributes:
        experts: n, the number of experts, each with a mask of its own.
        sparsity: τ, the least share of zeros in the masks, from 0 to below 1.
        overlap: β, weight of the masks' mean overlap in the loss; None for 0.1, or 0 with one expert.
        prompt_tokens: first tokens of a window, which the router sees; the loss counts those after them.
        gate_lr: the highest learning rate of log α of the gates, and of the router.
        dual_lr: size of a step of the multiplier λ that enforces the sparsity.
        tokens: training tokens in total, padding included; they determine the number of steps.
        seq_len: tokens in a window.
        batch_size: windows that pass through the model at once.
        accumulate: batches whose gradients are summed for one step.
        lr: the highest learning rate of AdamW, of the shared weights.
        warmup: steps in which the rates rise; None for a twentieth of them. They then fall to a tenth as a cosine.
        weight_decay: of AdamW, on the shared weights alone: towards the base model.
        seed: of the gates' and the router's first values, the masks of each step, and the windows and their order.
        device: `cpu` or `cuda`; None for the GPU if there is one.
        dtype: the dtype of the products: bfloat16 (weights and moments stay in float32), float32, or `auto`: bfloat16
            where the device is fast in it.
    """

    experts: int = 8
    sparsity: float = 0.75
    overlap: float | None = None
    prompt_tokens: int = 32
    gate_lr: float = 0.1
    dual_lr: float = 0.1
    tokens: int = 409_600
    seq_len: int = 256
    batch_size: int = 8
    accumulate: int = 1
    lr: float = 3e-4
    warmup: int | None = None
    weight_decay: float = 0.1
    seed: int = 0
    device: str | None = None
    dtype: str = AUTO

    def __post_init__(self) -> None:
        for name in ("experts", "prompt_tokens"):
            if (value := getattr(self, name)) < 1:
                raise InvalidInputError(
                    f"{name} is {value}, the least is 1", f"give --{name.replace('_', '-')} 1 or more"
                )
        if not 0 <= self.sparsity < 1:
            raise InvalidInputError(
                f"sparsity is {self.sparsity}, it must be from 0 to below 1: masks of zeros alone train nothing",
                "give --sparsity 0.75",
            )
        if self.overlap is not None and not (math.isfinite(self.overlap) and self.overlap >= 0):
            raise InvalidInputError(
                f"overlap is {self.overlap}, it must be finite and 0 or more", f"give --overlap {OVERLAP}"
            )
        if self.experts == 1 and self.overlap:
            raise InvalidInputError(
                f"overlap is {self.overlap}, and one mask has no other to overlap with",
                "drop --overlap, or give --experts 2 or more",
            )
        for name in ("gate_lr", "dual_lr"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                default = getattr(type(self), name)
                raise InvalidInputError(
                    f"{name} is {value}, it must be finite and more than 0",
                    f"give --{name.replace('_', '-')} {default}",
                )
        _ = self.weights  # which checks the rest
        self.check_window(self.seq_len)

    def check_window(self, seq_len: int) -> None:
        """Check that a window has tokens after the prompt.

        Raises:
            InvalidInputError: it has none.
        """
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

    @cached_property
    def weights(self) -> ExpertTraining:
        """The same as settings of the training of weights."""
        return ExpertTraining(trunk=FREE, **{name: value for name, value in asdict(self).items() if name not in _OWN})

    def document(self, device: str, dtype: str) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved."""
        settings = self.weights.document(device, dtype)
        own = {name: getattr(self, name) for name in _OWN} | {"overlap": self.beta}
        return {name: value for name, value in settings.items() if name in asdict(self) or name == "steps"} | own
