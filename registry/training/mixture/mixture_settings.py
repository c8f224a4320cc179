"""Settings of the training of a mixture."""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from registry.composition.trained import ALL, MLPS, PROJECTORS, ROUTERS
from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO
from registry.training.expert.expert_settings import FREE, FROZEN, ExpertTraining
from registry.training.settings import TrainSettings

TOP_K = 2
"""Least experts per token of a mixture whose weights train: the weight of a single one is 1, without a gradient."""

_BALANCE = 0.01


@dataclass(frozen=True)
class MixtureTraining:
    """Settings of the training of a mixture.

    Attributes:
        train: what trains: `routers`, in whitened coordinates (DUME+); `mlps`: the experts' MLPs and the routers;
            `all`: every weight (BTX, Sukhbaatar et al. 2024, §3.3); or `projectors`: those of members of several
            architectures, and their router (MergeME, Zhou et al. 2025, §3.2).
        tokens: training tokens in total, padding included; they determine the number of steps.
        seq_len: tokens in a window.
        batch_size: windows that pass through the model at once, in all processes together.
        accumulate: batches whose gradients are summed for one step.
        lr: the highest learning rate of AdamW; None for 3e-4, and 0.002 for routers alone.
        warmup: steps in which the rate rises; None for a twentieth of them, and a tenth for routers alone.
        weight_decay: of AdamW, on matrices; None for 0.1, and 0 for routers alone.
        balance: weight of the load-balance loss (BTX §3.3), summed over layers; None for 0.01, and 0 for routers alone
            and for projectors.
        seed: of the choice of windows and their order.
        device: `cpu` or `cuda`; None for the GPU if there is one.
        dtype: the dtype of the products: bfloat16 (weights and moments stay in float32), float32, or `auto`: bfloat16
            where the device is fast in it, and float32 for routers alone.
        fsdp: shard weights, gradients and moments over the processes of a launcher (FSDP); without, each process has
            them all.
    """

    train: str
    tokens: int = 409_600
    seq_len: int = 256
    batch_size: int = 8
    accumulate: int = 1
    lr: float | None = None
    warmup: int | None = None
    weight_decay: float | None = None
    balance: float | None = None
    seed: int = 0
    device: str | None = None
    dtype: str = AUTO
    fsdp: bool = False

    def __post_init__(self) -> None:
        if self.train not in (parts := (ROUTERS, MLPS, ALL, PROJECTORS)):
            raise InvalidInputError(f"train is {self.train!r}, it is one of {', '.join(parts)}", f"give --train {MLPS}")
        if self.balance is not None and not (math.isfinite(self.balance) and self.balance >= 0):
            raise InvalidInputError(
                f"balance is {self.balance}, it must be finite and 0 or more", f"give --balance {_BALANCE}"
            )
        if self.train == PROJECTORS:
            for name in ("balance", "fsdp"):
                if getattr(self, name):
                    raise InvalidInputError(f"{name} has no part in a training of projectors", f"drop --{name}")
        _ = self.routers if self.train == ROUTERS else self.weights  # which check the rest

    @cached_property
    def weights(self) -> ExpertTraining:
        """The same as settings of the training of weights."""
        return ExpertTraining(
            tokens=self.tokens,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            trunk=FREE if self.train == ALL else FROZEN,
            warmup=self.warmup,
            seed=self.seed,
            device=self.device,
            dtype=self.dtype,
            fsdp=self.fsdp,
            **_given(lr=self.lr, weight_decay=self.weight_decay),
        )

    @cached_property
    def routers(self) -> TrainSettings:
        """The same as settings of the training of routers; its batches are those of a step."""
        steps = ExpertTraining(
            tokens=self.tokens, seq_len=self.seq_len, batch_size=self.batch_size, accumulate=self.accumulate
        ).steps
        return TrainSettings(
            steps=steps,
            batch_size=self.batch_size * self.accumulate,
            seq_len=self.seq_len,
            warmup=self.warmup,
            seed=self.seed,
            device=self.device,
            **_given(
                lr=self.lr,
                weight_decay=self.weight_decay,
                balance=self.balance,
                dtype=None if self.dtype == AUTO else self.dtype,
            ),
        )

    @property
    def load_balance(self) -> float:
        """The weight of the load-balance loss."""
        if self.train == PROJECTORS:
            return 0.0
        return _BALANCE if self.balance is None else self.balance

    def document(self, seq_len: int, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved.

        Args:
            seq_len: tokens in a window, no more than the model takes.
            device: the kind of device.
            dtype: the dtype of the products.
            processes: the number of processes.
        """
        settings = self.weights.document(device, dtype, processes) | {"seq_len": seq_len}
        own = {field.name for field in fields(self)} | {"steps", "processes"}
        kept = {name: value for name, value in settings.items() if name in own}
        return kept | {"train": self.train, "balance": self.load_balance}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
