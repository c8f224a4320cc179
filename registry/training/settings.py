"""Settings of trainings, their checks, and what is told before one begins."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, NoReturn

from registry.composition.trained import ALL, MLPS, PROJECTORS, ROUTERS
from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO, WEIGHT_DTYPES
from registry.progress import Progress, remark
from registry.workspace import PathLike

GOES_ON = "an interrupted training goes on"
"""Beginning of the remark of a training that was interrupted, which says how many steps were done before."""
FULL = "full"
FROZEN, FREE = "frozen", "free"
DTYPES = (AUTO, "bfloat16", "float32")
CANDIDATES = 2
"""Experts that a token's gradient compares: more of them cost time for experts that the token hardly ever goes to."""
_BALANCE = 0.01
_LORA = re.compile(r"lora:([1-9][0-9]{0,4})")


@dataclass(frozen=True, kw_only=True)
class WeightTraining:
    """Settings of any training of weights.

    Attributes:
        tokens: training tokens in total, padding included; they determine the number of steps.
        seq_len: tokens in a window.
        batch_size: windows that pass through the model at once, in all processes together.
        accumulate: batches whose gradients are summed for one step.
        lr: the highest learning rate of AdamW.
        warmup: steps in which the rate rises; None for a twentieth of them. It then falls to a tenth as a cosine.
        weight_decay: of AdamW, on matrices alone.
        seed: of the choice of windows and their order, and of what a model draws.
        device: `cpu` or `cuda`; None for the GPU if there is one.
        dtype: the dtype of the products: bfloat16 (weights and moments stay in float32), float32, or `auto`: bfloat16
            where the device is fast in it.
    """

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
        check_least(self, tokens=1, seq_len=2, batch_size=1, accumulate=1, seed=0)
        check_finite("lr", self.lr, "3e-4")
        check_finite("weight_decay", self.weight_decay, "0.1", zero=True)
        if self.warmup is not None and not 0 <= self.warmup <= self.steps:
            refuse("warmup", self.warmup, f"there are {self.steps} steps", f"0 to {self.steps}")
        if self.dtype not in DTYPES:
            refuse("dtype", repr(self.dtype), f"it is one of {', '.join(DTYPES)}", AUTO)
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
    def windows(self) -> int:
        """Number of windows of all steps."""
        return self.steps * self.batch_size * self.accumulate

    @property
    def fsdp(self) -> bool:
        """Weights, gradients and moments are sharded over processes."""
        return False

    def rate(self, step: int) -> float:
        """Return the share of `lr` in a step, counted from 0, from 0 to 1."""
        warmup = _warmup(self, 20)
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        done = min(1.0, max(0.0, step - warmup) / max(1, self.steps - warmup))
        return rising * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))

    def document(self, device: str, dtype: str) -> dict[str, Any]:
        """Return what the trained weights depend on, with every default resolved."""
        values = {field.name: getattr(self, field.name) for field in fields(WeightTraining)}
        return values | {"warmup": _warmup(self, 20), "device": device, "dtype": dtype, "steps": self.steps}


@dataclass(frozen=True)
class TrainingText:
    """The text of a training.

    Attributes:
        own: files of the expert's text.
        public: files of public text, whose embeddings the router rows of `coordinate` begin with.
    """

    own: Sequence[PathLike]
    public: Sequence[PathLike] = ()


@dataclass(frozen=True, kw_only=True)
class ExpertTraining(WeightTraining):
    """Settings of the training of an expert: those of `WeightTraining`, and

    Attributes:
        trunk: `frozen`, so that all experts of one base model share it to the byte; or `free`: everything trains.
        mlp: `full`, or `lora:R`: a low-rank change of rank R of every matrix of the MLPs (Hu et al. 2022, eq. 3), which
            is added to the weights at the end.
        coordinate: train the MLPs beside the frozen public ones of the base model, with a router row of their own in
            every layer (FlexOlmo, Shi et al. 2025, §3.3.1); the trunk is then frozen.
        router_bias: with `coordinate`, a bias trains beside each row, from 0 on; its logit is r·x + b.
        fsdp: shard weights, gradients and moments over the processes of a launcher (FSDP); without, each process has
            them all.
    """

    trunk: str = FROZEN
    mlp: str = FULL
    coordinate: bool = False
    router_bias: bool = False
    fsdp: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trunk not in (FROZEN, FREE):
            refuse("trunk", repr(self.trunk), f"it is {FROZEN} or {FREE}", FROZEN)
        if self.mlp != FULL and not _LORA.fullmatch(self.mlp):
            refuse("mlp", repr(self.mlp), "it is full, or lora: and a rank of 1 or more", "lora:16")
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

    def check_processes(self, count: int) -> None:
        """Raise InvalidInputError if so many processes cannot share a batch evenly, or one is to shard weights."""
        if self.fsdp and count == 1:
            raise InvalidInputError(
                "fsdp shards weights over processes, and there is one",
                "start several: torchrun --nproc-per-node N -m cli …; or drop --fsdp",
            )
        if self.batch_size % count:
            refuse(
                "batch_size",
                self.batch_size,
                f"{count} processes cannot share its windows evenly",
                f"{-(-self.batch_size // count) * count}, or start another number of processes",
            )

    def document(self, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved.

        Several processes sum gradients in another order than one does, and so does each number of them.
        """
        own = {name: getattr(self, name) for name in ("trunk", "mlp", "coordinate", "router_bias")}
        document = super().document(device, dtype)
        names = [*document]
        ordered = {name: (document | own)[name] for name in (*names[:4], *own, *names[4:])}  # as files have it
        return ordered | ({"fsdp": self.fsdp, "processes": processes} if processes > 1 else {})


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training of routers; `batch_size`, `seq_len` and `seed` as in `WeightTraining`.

    Attributes:
        steps: the number of batches; every window is used once before any is used again.
        lr: the highest learning rate of AdamW, which bounds the change of one step, in units of the spread of a
            router's logits over its whitened inputs.
        warmup: steps in which the rate rises; None for a tenth of them. It then falls to 0 as a cosine.
        weight_decay: of AdamW, towards the untrained router.
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
        check_least(self, steps=1, batch_size=1, seq_len=2, warmup=0, seed=0)
        check_finite("lr", self.lr, str(TrainSettings.lr))
        check_finite("temperature", self.temperature, str(TrainSettings.temperature))
        check_finite("weight_decay", self.weight_decay, "0", zero=True)
        check_finite("balance", self.balance, "0", zero=True)
        if self.warmup is not None and self.warmup > self.steps:
            refuse("warmup", self.warmup, f"there are {self.steps} steps", f"{self.steps} or less")
        if self.dtype not in WEIGHT_DTYPES:
            raise InvalidInputError(
                f"dtype {self.dtype!r} is not one of {', '.join(WEIGHT_DTYPES)}", "choose one of them: --dtype float32"
            )

    @property
    def windows(self) -> int:
        """Number of windows of all steps."""
        return self.steps * self.batch_size

    def candidates(self, top_k: int, experts: int) -> int:
        """Return the number of experts that each token's gradient compares, from 2 to `experts`.

        `top_k` is the folder's own number of experts per token (InvalidInputError: there is only one expert, or
        `top_k_train` is out of range).
        """
        if experts < 2:
            raise InvalidInputError(
                "a composition of one expert has no router to train", "compose two experts or more, then train that"
            )
        least = max(top_k, CANDIDATES)
        count = least if self.top_k_train is None else self.top_k_train
        if not least <= count <= experts:
            raise InvalidInputError(
                f"top-k-train is {count}, it must be from {least} to {experts}: of {experts} experts the folder's "
                f"own top-k is {top_k}, and a gradient compares at least 2",
                f"give --top-k-train {least}",
            )
        return count

    def rate(self, step: int) -> float:
        """Return the share of `lr` in a step, counted from 0, from 0 to 1."""
        warmup = _warmup(self, 10)
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rising * _falling(step, self.steps)

    def document(self, candidates: int, device: str) -> dict[str, Any]:
        """Return everything that the trained routers depend on, with every default; `device` is a kind of device."""
        return asdict(self) | {"warmup": _warmup(self, 10), "top_k_train": candidates, "device": device}


@dataclass(frozen=True)
class MixtureTraining:
    """Settings of the training of a mixture.

    Attributes:
        train: what trains: `routers`, in whitened coordinates (DUME+); `mlps`: the experts' MLPs and the routers;
            `all`: every weight (BTX, Sukhbaatar et al. 2024, §3.3); or `projectors`: those of members of several
            architectures, and their router (MergeME, Zhou et al. 2025, §3.2).
        tokens, seq_len, batch_size, accumulate, seed, device: as in `WeightTraining`.
        lr: the highest learning rate of AdamW; None for 3e-4, and 0.002 for routers alone.
        warmup: steps in which the rate rises; None for a twentieth of them, and a tenth for routers alone.
        weight_decay: of AdamW, on matrices; None for 0.1, and 0 for routers alone.
        balance: weight of the load-balance loss (BTX §3.3), summed over layers; None for 0.01, and 0 for routers alone
            and for projectors.
        dtype: as in `WeightTraining`; `auto` is float32 for routers alone.
        fsdp: as in `ExpertTraining`.
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
        if self.balance is not None:
            check_finite("balance", self.balance, str(_BALANCE), zero=True)
        if self.train == PROJECTORS:
            for name in ("balance", "fsdp"):
                if getattr(self, name):
                    raise InvalidInputError(f"{name} has no part in a training of projectors", f"drop --{name}")
        _ = self.routers if self.train == ROUTERS else self.weights  # which check the rest

    @cached_property
    def weights(self) -> ExpertTraining:
        """The same as settings of the training of weights."""
        return ExpertTraining(**self._given(train=None, balance=None))

    @cached_property
    def routers(self) -> TrainSettings:
        """The same as settings of the training of routers; its batches are those of a step."""
        sizes = ("tokens", "seq_len", "batch_size", "accumulate")
        steps = ExpertTraining(**{name: getattr(self, name) for name in sizes}).steps
        own = {"train": None, "tokens": None, "accumulate": None, "fsdp": None}
        dtype = None if self.dtype == AUTO else self.dtype
        return TrainSettings(
            **self._given(**own, steps=steps, batch_size=self.batch_size * self.accumulate, dtype=dtype)
        )

    @property
    def load_balance(self) -> float:
        """The weight of the load-balance loss."""
        if self.train == PROJECTORS:
            return 0.0
        return _BALANCE if self.balance is None else self.balance

    def document(self, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved; `device` is its kind."""
        own = {field.name for field in fields(self)} | {"steps", "processes"}
        settings = self.weights.document(device, dtype, processes)
        kept = {name: value for name, value in settings.items() if name in own}
        return kept | {"train": self.train, "balance": self.load_balance}

    def _given(self, **changes: Any) -> dict[str, Any]:
        """Return these settings with changes; None leaves a setting out."""
        return {name: value for name, value in (asdict(self) | changes).items() if value is not None}


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit of coefficients; `batch_size`, `seq_len` and `seed` as in `WeightTraining`.

    Attributes:
        tokens: tokens of text in all; files provide equal numbers of them.
        steps: steps of Adam, each on one batch; every window is used once before any is used again.
        lr: the highest learning rate, which bounds the change of a coefficient in one step; it falls to 0 as a cosine.
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
        """Return the share of `lr` in a step, counted from 0, from 0 to 1."""
        return _falling(step, self.steps)


def check_least(settings: object, **least: int) -> None:
    """Refuse settings that are less than each must be at least; None is well (errors as `refuse`)."""
    for name, number in least.items():
        value = getattr(settings, name)
        if value is not None and value < number:
            refuse(name, value, f"the least is {number}", f"{number} or more")


def check_finite(name: str, value: float, remedy: str, *, zero: bool = False) -> None:
    """Refuse a number that is not finite and more than 0, or with `zero` 0 or more (errors as `refuse`)."""
    if not (math.isfinite(value) and (value >= 0 if zero else value > 0)):
        refuse(name, value, f"it must be finite and {'0 or more' if zero else 'more than 0'}", remedy)


def refuse(name: str, value: object, reason: str, remedy: str) -> NoReturn:
    """Raise InvalidInputError for the value of a setting; `remedy` is what to give its option."""
    raise InvalidInputError(f"{name} is {value}, {reason}", f"give --{name.replace('_', '-')} {remedy}")


def announce(
    progress: Progress, what: str, weights: int, settings: WeightTraining | TrainSettings, device: str, count: int = 1
) -> None:
    """Remark what will be trained, before anything that takes time: the number of what, and by how many processes."""
    apart = f" in {count} processes" if count > 1 else ""
    steps = f"{settings.steps:,} step{'' if settings.steps == 1 else 's'}"
    tokens = settings.windows * settings.seq_len
    remark(progress, f"training {what}: {weights:,} weights, {steps}, {tokens:,} tokens, on {device}{apart}")


def _warmup(settings: WeightTraining | TrainSettings, part: int) -> int:
    return settings.steps // part if settings.warmup is None else settings.warmup


def _falling(step: int, steps: int) -> float:
    """Return a half cosine, from 1 in step 0 to almost 0 in the last of some steps."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))
