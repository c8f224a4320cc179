"""Settings of trainings, their checks, and what is told before one begins.

Settings ── FitSettings                      coefficients of task vectors, by Adam
└── AdamSettings ── TrainSettings            routers alone
    └── WeightTraining                       weights, and in registry/methods/ those of a soup and of a SIMoE
        └── SharedTraining                   in several processes: ExpertTraining, MixtureTraining
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import Any, ClassVar, NoReturn

from registry.composition.trained import ALL, MLPS, PROJECTORS, ROUTERS
from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO, WEIGHT_DTYPES
from registry.progress import Progress, remark
from registry.workspace import PathLike

GOES_ON = "an interrupted training goes on"
"""Beginning of the remark of a training that was interrupted, which says how many steps were done before."""
FROZEN, FREE = "frozen", "free"
DTYPES = (AUTO, "bfloat16", "float32")
CANDIDATES = 2
"""Experts that a token's gradient compares: more of them cost time for experts that the token hardly ever goes to."""
_BALANCE = 0.01


def setting(default: Any, *, least: int | None = None, above: bool | None = None) -> Any:
    """Return a field of settings, an integer from `least` on, or a finite number: `above` 0, or if False from 0 on."""
    return field(default=default, metadata={"least": least, "above": above})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every training.

    Attributes:
        seq_len: tokens in a window.
        batch_size: windows that pass through the model at once, in all processes together.
        lr: the highest learning rate.
        seed: of the choice of windows and their order, and of what a model draws.
        device: a torch device; None for the GPU if there is one.
    """

    seq_len: int = setting(256, least=2)
    batch_size: int = setting(8, least=1)
    lr: float = setting(3e-4, above=True)
    seed: int = setting(0, least=0)
    device: str | None = None

    option: ClassVar[str] = "--"
    """Beginning of the names of its options."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        raise NotImplementedError

    @property
    def windows(self) -> int:
        """Number of windows of all steps."""
        return self.steps * self.batch_size

    def rate(self, step: int) -> float:
        """Return the share of `lr` in a step, counted from 0: a half cosine, from 1 to almost 0 in the last."""
        return 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least, above = getattr(self, one.name), one.metadata.get("least"), one.metadata.get("above")
            if value is None:
                continue
            if least is not None and value < least:
                self.refuse(one.name, value, f"the least is {least}", f"{least} or more")
            if above is not None and not (math.isfinite(value) and (value > 0 if above else value >= 0)):
                reason = f"it must be finite and {'more than 0' if above else '0 or more'}"
                self.refuse(one.name, value, reason, f"{1e-3 if one.default is None else one.default:g}")

    def refuse(self, name: str, value: object, reason: str, remedy: str) -> NoReturn:
        """Raise InvalidInputError for the value of a setting; `remedy` is what to give its option."""
        raise InvalidInputError(f"{name} is {value}, {reason}", f"give {self.option}{name.replace('_', '-')} {remedy}")


@dataclass(frozen=True, kw_only=True)
class AdamSettings(Settings):
    """Settings of a training by AdamW: those of `Settings`, and

    Attributes:
        warmup: steps in which the rate rises; None for a twentieth of them. It then falls to a tenth as a cosine.
        weight_decay: of AdamW, on matrices alone.
        dtype: the dtype of the products: bfloat16 (weights and moments stay in float32), float32, or `auto`: bfloat16
            where the device is fast in it.
    """

    warmup: int | None = setting(None, least=0)
    weight_decay: float = setting(0.1, above=False)
    dtype: str = AUTO

    dtypes: ClassVar[Sequence[str]] = DTYPES
    part: ClassVar[int] = 20
    """What part of the steps `warmup` is where it is None: a twentieth."""
    betas: ClassVar[tuple[float, float]] = (0.9, 0.95)
    """Decay rates of AdamW's moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rising > self.steps:
            self.refuse("warmup", self.warmup, f"there are {self.steps} steps", f"0 to {self.steps}")
        if self.dtype not in self.dtypes:
            self.refuse("dtype", repr(self.dtype), f"it is one of {', '.join(self.dtypes)}", type(self).dtype)

    @property
    def rising(self) -> int:
        """Steps in which the rate rises."""
        return self.steps // self.part if self.warmup is None else self.warmup

    def rate(self, step: int) -> float:
        """Return the share of `lr` in a step, counted from 0, from 0 to 1."""
        done = min(1.0, max(0.0, step - self.rising) / max(1, self.steps - self.rising))
        return self.risen(step) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))

    def risen(self, step: int) -> float:
        """Return the share of a rate that rises in the first steps, from 0 to 1."""
        return min(1.0, (step + 1) / self.rising) if self.rising else 1.0


@dataclass(frozen=True, kw_only=True)
class WeightTraining(AdamSettings):
    """Settings of any training of weights: those of `AdamSettings`, and

    Attributes:
        tokens: training tokens in total, padding included; they determine the number of steps.
        accumulate: batches whose gradients are summed for one step.
    """

    tokens: int = setting(409_600, least=1)
    accumulate: int = setting(1, least=1)

    fsdp: ClassVar[bool] = False
    clip: ClassVar[float] = 1.0
    """Norm that gradients are clipped to, all together."""

    def __post_init__(self) -> None:
        super().__post_init__()
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

    def document(self, device: str, dtype: str) -> dict[str, Any]:
        """Return what the trained weights depend on, with every default resolved."""
        values = {name: getattr(self, name) for name in _DOCUMENT}
        return values | {"warmup": self.rising, "device": device, "dtype": dtype, "steps": self.steps}


_DOCUMENT = ("tokens", "seq_len", "batch_size", "accumulate", "lr", "warmup", "weight_decay", "seed", "device", "dtype")
"""Settings of a training of weights, in the order of files."""


@dataclass(frozen=True, kw_only=True)
class SharedTraining(WeightTraining):
    """Settings of a training of weights that several processes can share: those of `WeightTraining`, and

    Attributes:
        fsdp: shard weights, gradients and moments over the processes of a launcher (FSDP); without, each process has
            them all.
    """

    fsdp: bool = False  # type: ignore[misc]  # a setting here

    def check_processes(self, count: int) -> None:
        """Raise InvalidInputError if so many processes cannot share a batch evenly, or one is to shard weights."""
        if self.fsdp and count == 1:
            raise InvalidInputError(
                "fsdp shards weights over processes, and there is one",
                "start several: torchrun --nproc-per-node N -m cli …; or drop --fsdp",
            )
        if self.batch_size % count:
            self.refuse(
                "batch_size",
                self.batch_size,
                f"{count} processes cannot share its windows evenly",
                f"{-(-self.batch_size // count) * count}, or start another number of processes",
            )

    def document(self, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved.

        Several processes sum gradients in another order than one does, and so does each number of them.
        """
        document = super().document(device, dtype)
        return document | ({"fsdp": self.fsdp, "processes": processes} if processes > 1 else {})


@dataclass(frozen=True, kw_only=True)
class ExpertTraining(SharedTraining):
    """Settings of the training of an expert: those of `SharedTraining`, and

    Attributes:
        trunk: `frozen`, so that all experts of one base model share it to the byte; or `free`: everything trains.
        lora: rank of an adapter that changes every linear layer but the head, scaled by 2 (LoRA, Hu et al. 2021,
            eq. 3), and is all that trains; None to train weights.
        coordinate: train the MLPs beside the frozen public ones of the base model, with a router row of their own in
            every layer (FlexOlmo, Shi et al. 2025, §3.3.1 and 3.3.2); the trunk is then frozen.
        router_bias: with `coordinate`, a bias b trains beside each row, from 0 on and never above it: FlexOlmo's is
            negative (§3.3.2, D.2). The logit is r·x + b.
    """

    trunk: str = FROZEN
    lora: int | None = setting(None, least=1)
    coordinate: bool = False
    router_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trunk not in (FROZEN, FREE):
            self.refuse("trunk", repr(self.trunk), f"it is {FROZEN} or {FREE}", FROZEN)
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
        beside = {"--trunk free": self.trunk == FREE, "--coordinate": self.coordinate, "--fsdp": self.fsdp}
        if self.lora is not None and (others := [option for option, is_given in beside.items() if is_given]):
            raise InvalidInputError(
                f"lora is {self.lora}: an adapter trains, and so {others[0]} has no meaning",
                f"drop {others[0]}, or --lora",
            )

    def trained_part(self, base: str) -> str:
        """Return what of a base model trains, in words."""
        if self.lora is not None:
            return f"an adapter of rank {self.lora} of {base}"
        if self.trunk == FREE:
            return f"all weights of {base}"
        return f"the MLPs of {base}{' and router rows' if self.coordinate else ''}"

    def document(self, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, as `SharedTraining`, in the order of files."""
        document = super().document(device, dtype, processes)
        own = {name: getattr(self, name) for name in ("trunk", "lora", "coordinate", "router_bias")}
        return {name: (document | own)[name] for name in (*_DOCUMENT[:4], *own, *list(document)[4:])}


@dataclass(frozen=True, kw_only=True)
class TrainSettings(AdamSettings):
    """Settings of the training of routers: those of `AdamSettings`, and

    Attributes:
        steps: the number of batches; every window is used once before any is used again.
        lr: the highest learning rate of AdamW, which bounds the change of one step, in units of the spread of a
            router's logits over its whitened inputs; without `whiten` in those of its weights.
        warmup: steps in which the rate rises; None for a tenth of them. It falls to 0 as a cosine.
        weight_decay: of AdamW, towards the untrained router.
        dtype: the dtype that the model computes in; routers are kept in float32.
        top_k_train: experts that each token's gradient compares, None for 2, or the folder's own top-k if that is more.
            At the folder's own top-k the gradient is that of its routing; 1 has one only where weights are shares of
            the softmax over all experts (DUME, Fanì and Ersoy 2026, eq. 4).
        temperature: divides the logits in that comparison only.
        balance: weight of the load-balance loss (BTX §3.3), summed over layers.
        whiten: train in the coordinates of the whitened inputs, which is ours; without, the weights as they are. DUME+
            has an `lr` of 1e-5 for these, and its BTX 1e-4, 1,000 steps, and no `balance` (DUME §3.1).
    """

    steps: int = setting(200, least=1)
    lr: float = setting(0.002, above=True)
    weight_decay: float = setting(0.0, above=False)
    dtype: str = "float32"
    top_k_train: int | None = None
    temperature: float = setting(1.0, above=True)
    balance: float = setting(0.0, above=False)
    whiten: bool = True

    dtypes: ClassVar[Sequence[str]] = WEIGHT_DTYPES
    part: ClassVar[int] = 10

    def candidates(self, top_k: int, experts: int, *, renormalizes: bool = True) -> int:
        """Return the number of experts that each token's gradient compares, at most `experts`.

        `top_k` is the folder's own number of experts per token; `renormalizes` tells whether their weights add up to 1,
        so that that of a single one has no gradient (InvalidInputError: there is only one expert, or `top_k_train` is
        out of range).
        """
        if experts < 2:
            raise InvalidInputError(
                "a composition of one expert has no router to train", "compose two experts or more, then train that"
            )
        least = max(top_k, CANDIDATES) if renormalizes else top_k
        count = max(top_k, CANDIDATES) if self.top_k_train is None else self.top_k_train
        if not least <= count <= experts:
            why = f", and a gradient compares at least {CANDIDATES}" if renormalizes else ""
            raise InvalidInputError(
                f"top-k-train is {count}, it must be from {least} to {experts}: of {experts} experts the folder's "
                f"own top-k is {top_k}{why}",
                f"give --top-k-train {least}",
            )
        return count

    def rate(self, step: int) -> float:
        """Return the share of `lr` in a step, counted from 0, from 0 to 1."""
        return self.risen(step) * Settings.rate(self, step)

    def document(self, candidates: int, device: str) -> dict[str, Any]:
        """Return everything that the trained routers depend on, with every default; `device` is a kind of device."""
        document = asdict(self) | {"warmup": self.rising, "top_k_train": candidates, "device": device}
        if self.whiten:  # as in the documents of early versions
            del document["whiten"]
        return document


@dataclass(frozen=True)
class MixtureTraining(SharedTraining):
    """Settings of the training of a mixture: those of `SharedTraining`, and

    Attributes:
        train: what trains: `routers`, as in DUME+ (Fanì and Ersoy 2026, §2.3), but in whitened coordinates; `mlps`:
            the experts' MLPs and the routers; `all`: every weight (BTX, Sukhbaatar et al. 2024, §3.3; of members of
            several architectures MergeME, Zhou et al. 2025, §3.2); or `projectors`: those of such members, and their
            router, alone.
        lr: the highest learning rate of AdamW; None for 3e-4, and 0.002 for routers alone.
        warmup: steps in which the rate rises; None for a twentieth of them, and a tenth for routers alone.
        weight_decay: of AdamW, on matrices; None for 0.1, and 0 for routers alone.
        balance: weight of the load-balance loss (BTX §3.3), summed over layers, and of members of several architectures
            over sequences; None for 0.01, and 0 for routers alone and for projectors.
        dtype: `auto` is float32 for routers alone.
    """

    train: str
    _: KW_ONLY
    lr: float | None = setting(None, above=True)  # type: ignore[assignment]  # a number once it is made
    weight_decay: float | None = setting(None, above=False)  # type: ignore[assignment]
    balance: float | None = setting(None, above=False)

    def __post_init__(self) -> None:
        if self.train not in (parts := (ROUTERS, MLPS, ALL, PROJECTORS)):
            raise InvalidInputError(f"train is {self.train!r}, it is one of {', '.join(parts)}", f"give --train {MLPS}")
        if self.train == PROJECTORS:
            for name in ("balance", "fsdp"):
                if getattr(self, name):
                    raise InvalidInputError(f"{name} has no part in a training of projectors", f"drop --{name}")
        like: type[AdamSettings] = TrainSettings if self.train == ROUTERS else SharedTraining
        balance = 0.0 if self.train in (ROUTERS, PROJECTORS) else _BALANCE
        for name, default in (("lr", like.lr), ("weight_decay", like.weight_decay), ("balance", balance)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        super().__post_init__()

    @property
    def routers(self) -> TrainSettings:
        """The same as settings of the training of routers; its batches are those of a step."""
        names = ("seq_len", "lr", "warmup", "weight_decay", "balance", "seed", "device")
        dtype = TrainSettings.dtype if self.dtype == AUTO else self.dtype
        own: dict[str, Any] = {"steps": self.steps, "batch_size": self.batch_size * self.accumulate, "dtype": dtype}
        return TrainSettings(**own, **{name: getattr(self, name) for name in names})

    def document(self, device: str, dtype: str, processes: int = 1) -> dict[str, Any]:
        """Return everything that the trained weights depend on, as `SharedTraining`; `device` is its kind."""
        return super().document(device, dtype, processes) | {"train": self.train, "balance": self.balance}


@dataclass(frozen=True, kw_only=True)
class FitSettings(Settings):
    """Settings of a fit of coefficients: those of `Settings`, and

    Attributes:
        tokens: tokens of text in all; files provide equal numbers of them.
        steps: steps of Adam, each on one batch; every window is used once before any is used again.
        lr: the highest learning rate, which bounds the change of a coefficient in one step; it falls to 0 as a cosine.
    """

    tokens: int = setting(16_384, least=1)
    steps: int = setting(30, least=1)
    lr: float = setting(0.05, above=True)

    option: ClassVar[str] = "--fit-"


@dataclass(frozen=True)
class TrainingText:
    """The text of a training.

    Attributes:
        own: files of the expert's text.
        public: files of public text, whose embeddings the router rows of `coordinate` begin with.
    """

    own: Sequence[PathLike]
    public: Sequence[PathLike] = ()


def announce(progress: Progress, what: str, weights: int, settings: AdamSettings, device: str, count: int = 1) -> None:
    """Remark what will be trained, before anything that takes time: the number of what, and by how many processes."""
    apart = f" in {count} processes" if count > 1 else ""
    steps = f"{settings.steps:,} step{'' if settings.steps == 1 else 's'}"
    tokens = settings.windows * settings.seq_len
    remark(progress, f"training {what}: {weights:,} weights, {steps}, {tokens:,} tokens, on {device}{apart}")
