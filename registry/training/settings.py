"""Settings of training."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from registry.errors import InvalidInputError
from registry.io.dtypes import WEIGHT_DTYPES

DEFAULT_CANDIDATES = 2
"""Experts that a token's gradient compares: more of them cost time for experts that the token hardly ever goes to."""


@dataclass(frozen=True)
class TrainSettings:
    """Settings of training.

    Attributes:
        steps: the number of batches; every window is used once before any is used again.
        batch_size: windows in a batch.
        seq_len: tokens in a window.
        lr: the highest learning rate of AdamW, which bounds the change of one step, in units of the spread of a
            router's logits over its whitened inputs.
        warmup: steps in which the rate rises; None for a tenth of them. It then falls to 0 as a cosine.
        weight_decay: of AdamW, towards the untrained router.
        seed: the seed of the choice of windows and of their order.
        top_k_train: experts that each token's gradient compares, None for 2, or the folder's own top-k if that is more.
        temperature: divides the logits in that comparison only.
        balance: weight of the load-balance loss (BTX §3.3), summed over layers.
        device: a torch device, or None for the GPU if there is one.
        dtype: the dtype that the model computes in; routers are kept in float32.
    """

    steps: int = 200
    batch_size: int = 8
    seq_len: int = 256
    lr: float = 0.002
    warmup: int | None = None
    weight_decay: float = 0.0
    seed: int = 0
    top_k_train: int | None = None
    temperature: float = 1.0
    balance: float = 0.0
    device: str | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("seq_len", 2), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                _refuse(name, value, f"the least is {least}", f"{least} or more")
        for name in ("lr", "temperature"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                _refuse(name, getattr(self, name), "it must be finite and more than 0", str(getattr(type(self), name)))
        for name in ("weight_decay", "balance"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                _refuse(name, getattr(self, name), "it must be finite and 0 or more", "0")
        if self.warmup is not None and self.warmup > self.steps:
            _refuse("warmup", self.warmup, f"there are {self.steps} steps", f"{self.steps} or less")
        if self.dtype not in WEIGHT_DTYPES:
            raise InvalidInputError(
                f"dtype {self.dtype!r} is not one of {', '.join(WEIGHT_DTYPES)}", "choose one of them: --dtype float32"
            )

    def candidates(self, top_k: int, experts: int) -> int:
        """Return the number of experts that each token's gradient compares, from 2 to `experts`.

        Args:
            top_k: the folder's own experts per token.
            experts: the number of experts.

        Raises:
            InvalidInputError: there is only one expert, or `top_k_train` is out of range.
        """
        if experts < 2:
            raise InvalidInputError(
                "a composition of one expert has no router to train", "compose two experts or more, then train that"
            )
        least = max(top_k, 2)
        count = max(top_k, DEFAULT_CANDIDATES) if self.top_k_train is None else self.top_k_train
        if not least <= count <= experts:
            raise InvalidInputError(
                f"top-k-train is {count}, it must be from {least} to {experts}: of {experts} experts the folder's "
                f"own top-k is {top_k}, and a gradient compares at least 2",
                f"give --top-k-train {least}",
            )
        return count

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warmup = self.steps // 10 if self.warmup is None else self.warmup
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return self.lr * rising * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def document(self, candidates: int, device: str) -> dict[str, Any]:
        """Return everything that the trained routers depend on, with every default; `device` is a kind of device."""
        return asdict(self) | {
            "warmup": self.steps // 10 if self.warmup is None else self.warmup,
            "top_k_train": candidates,
            "device": device,
        }


def _refuse(name: str, value: object, reason: str, remedy: str) -> None:
    raise InvalidInputError(f"{name} is {value}, {reason}", f"give --{name.replace('_', '-')} {remedy}")
