"""Settings of the training of an expert."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO
from registry.workspace import PathLike

FULL = "full"
FROZEN, FREE = "frozen", "free"
DTYPES = (AUTO, "bfloat16", "float32")
_LORA = re.compile(r"lora:([1-9][0-9]{0,4})")


@dataclass(frozen=True)
class TrainingText:
    """The text of a training.

    Attributes:
        own: files of the expert's text.
        public: files of public text, whose embeddings the router rows of `coordinate` begin with.
    """

    own: Sequence[PathLike]
    public: Sequence[PathLike] = ()


@dataclass(frozen=True)
class ExpertTraining:
    """Settings of the training of an expert.

    Attributes:
        tokens: training tokens in total, padding included; they determine the number of steps.
        seq_len: tokens in a window.
        batch_size: windows that pass through the model at once, in all processes together.
        accumulate: batches whose gradients are summed for one step.
        trunk: `frozen`, so that all experts of one base model share it to the byte; or `free`: everything trains.
        mlp: `full`, or `lora:R`: a low-rank change of rank R of every matrix of the MLPs (Hu et al. 2022, eq. 3), which
            is added to the weights at the end.
        coordinate: train the MLPs beside the frozen public ones of the base model, with a router row of their own in
            every layer (FlexOlmo, Shi et al. 2025, §3.3.1); the trunk is then frozen.
        router_bias: with `coordinate`, a bias trains beside each row, from 0 on; its logit is r·x + b.
        lr: the highest learning rate of AdamW.
        warmup: steps in which the rate rises; None for a twentieth of them. It then falls to a tenth as a cosine.
        weight_decay: of AdamW, on matrices alone.
        seed: of the choice of windows and their order.
        device: `cpu` or `cuda`; None for the GPU if there is one.
        dtype: the dtype of the products: bfloat16 (weights and moments stay in float32), float32, or `auto`: bfloat16
            where the device is fast in it.
        fsdp: shard weights, gradients and moments over the processes of a launcher (FSDP); without, each process has
            them all.
    """

    tokens: int = 409_600
    seq_len: int = 256
    batch_size: int = 8
    accumulate: int = 1
    trunk: str = FROZEN
    mlp: str = FULL
    coordinate: bool = False
    router_bias: bool = False
    lr: float = 3e-4
    warmup: int | None = None
    weight_decay: float = 0.1
    seed: int = 0
    device: str | None = None
    dtype: str = AUTO
    fsdp: bool = False

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("seq_len", 2), ("batch_size", 1), ("accumulate", 1), ("seed", 0)):
            if getattr(self, name) < least:
                _refuse(name, getattr(self, name), f"the least is {least}", f"{least} or more")
        if not (math.isfinite(self.lr) and self.lr > 0):
            _refuse("lr", self.lr, "it must be finite and more than 0", "3e-4")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            _refuse("weight_decay", self.weight_decay, "it must be finite and 0 or more", "0.1")
        if self.warmup is not None and not 0 <= self.warmup <= self.steps:
            _refuse("warmup", self.warmup, f"there are {self.steps} steps", f"0 to {self.steps}")
        if self.trunk not in (FROZEN, FREE):
            _refuse("trunk", repr(self.trunk), f"it is {FROZEN} or {FREE}", FROZEN)
        if self.mlp != FULL and not _LORA.fullmatch(self.mlp):
            _refuse("mlp", repr(self.mlp), "it is full, or lora: and a rank of 1 or more", "lora:16")
        if self.coordinate and self.trunk != FROZEN:
            raise InvalidInputError(
                "experts that are trained to coordinate share a frozen trunk, and trunk is free",
                "drop --coordinate, or give --trunk frozen",
            )
        if self.router_bias and not self.coordinate:
            raise InvalidInputError(
                "router_bias is for a router row, and an expert without --coordinate has none",
                "add --coordinate, or drop --router-bias",
            )
        if self.fsdp and self.rank is not None:
            raise InvalidInputError(
                f"mlp is {self.mlp}, and a low-rank change cannot be added to sharded weights",
                "drop --fsdp: what trains is small; or give --mlp full",
            )
        if self.dtype not in DTYPES:
            _refuse("dtype", repr(self.dtype), f"it is one of {', '.join(DTYPES)}", AUTO)
        if self.device is not None and self.device not in ("cpu", "cuda"):
            raise InvalidInputError(
                f"device {self.device!r} is neither cpu nor cuda",
                "to train on one of several GPUs, give --device cuda and set CUDA_VISIBLE_DEVICES to its number",
            )

    @property
    def steps(self) -> int:
        """Number of steps of AdamW, the last one of a full batch."""
        return -(-self.tokens // (self.seq_len * self.batch_size * self.accumulate))

    @property
    def rank(self) -> int | None:
        """Rank of the low-rank change; None if the MLPs train in full."""
        match = _LORA.fullmatch(self.mlp)
        return int(match[1]) if match else None

    def trained_part(self, base: str) -> str:
        """Return what of a base model trains, in words."""
        if self.trunk == FREE and self.rank is None:
            return f"all weights of {base}"
        trunk = "the trunk and " if self.trunk == FREE else ""
        change = "" if self.rank is None else f"a change of rank {self.rank} of "
        return f"{trunk}{change}the MLPs of {base}{' and router rows' if self.coordinate else ''}"

    def rate(self, step: int) -> float:
        """Return the share of `lr` in a step, counted from 0, from 0 to 1."""
        warmup = self.steps // 20 if self.warmup is None else self.warmup
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        done = min(1.0, max(0.0, step - warmup) / max(1, self.steps - warmup))
        return rising * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))

    def check_processes(self, count: int) -> None:
        """Check that so many processes can train together.

        Raises:
            InvalidInputError: they cannot share a batch evenly, or one is to shard weights.
        """
        if self.fsdp and count == 1:
            raise InvalidInputError(
                "fsdp shards weights over processes, and there is one",
                "start several: torchrun --nproc-per-node N -m cli …; or drop --fsdp",
            )
        if self.batch_size % count:
            _refuse(
                "batch_size",
                self.batch_size,
                f"{count} processes cannot share its windows evenly",
                f"{-(-self.batch_size // count) * count}, or start another number of processes",
            )

    def document(self, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved.

        Several processes sum gradients in another order than one does, and so does each number of them.
        """
        warmup = self.steps // 20 if self.warmup is None else self.warmup
        document = asdict(self) | {"warmup": warmup, "steps": self.steps, "device": device, "dtype": dtype}
        shared = {"fsdp": document.pop("fsdp"), "processes": processes}
        return document | (shared if processes > 1 else {})


def _refuse(name: str, value: object, reason: str, remedy: str) -> None:
    raise InvalidInputError(f"{name} is {value}, {reason}", f"give --{name.replace('_', '-')} {remedy}")
