"""How a subset becomes a model: trunk method, router method and their parameters."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from registry.errors import InvalidInputError
from registry.io.dtypes import WEIGHT_DTYPES
from registry.io.schema import NUMBER, NUMBERS, OBJECT, SWITCH, TEXT, WHOLE, Kind, check_written, fields, maybe
from registry.maths.router import BASE, OWN, ROUTERS
from registry.maths.trunk import TRUNKS
from registry.statistics.settings import PassSettings

OUTPUTS = ("moe", "dense")
"""What a recipe can make: a sparse mixture, or one dense model in which the MLPs are combined as the trunk is."""

BALANCES = ("none", "tokens")
TOKEN_WEIGHTS = ("none", "advantage")
AUTO = "auto"
TOP_K = 2
"""Experts per token, unless told otherwise.

*Measured* with RegMean's trunk and ridge columns as they are, at temperature 0.05: of five experts near the base model
88.6 (one per token 88.5; unit columns, one per token, 88.6), with two far ones beside them 77.0 (76.4; 76.0).
"""
MOST_PASSES = 8

_KINDS = {
    **dict.fromkeys(("to", "trunk", "router", "token_weight", "balance"), TEXT),
    **dict.fromkeys(("trunk_options", "bias", "weights"), NUMBERS),
    **dict.fromkeys(("seed", "top_k", "refine"), WHOLE),
    **dict.fromkeys(("normalize", "refine_mlp"), SWITCH),
    "lam": Kind(f"{NUMBER.words} or {AUTO}", lambda value: value == AUTO or NUMBER.holds(value)),
    "temperature": NUMBER,
    "computed": OBJECT,
    "dtype": maybe(TEXT),
}
"""Key of a document → what it holds."""
_COMPUTED = {
    "batch_size": WHOLE,
    "device": Kind("a kind of device", lambda value: isinstance(value, str) and value.isidentifier()),
}

_RANGES = {"alpha": (0.0, 1.0), "density": (1e-3, 1.0), "scale": (-10.0, 10.0)}
"""Trunk option → the least and the largest value."""


@dataclass(frozen=True)
class Recipe:
    """Trunk method + router method + their parameters.

    Attributes:
        trunk: a key of `TRUNKS`.
        trunk_options: parameters of the trunk method, where they are not its defaults.
        router: a key of `ROUTERS`.
        lam: ridge strength ≥ 0, added to the summed Gram as it is (DUME eq. 6), or `auto`: for each layer the one of
            least held-out error.
        normalize: router columns at unit length.
        bias: member name → what is added to its logits, as far as a router without a bias can (domain-embedding).
        seed: of a random router.
        token_weight: `advantage` weighs each calibration token by what the expert gains on it over the base model;
            `none` takes all alike.
        refine: passes of the members' kept tokens through the composed model, from which the router is solved; 0 takes
            the statistics of each expert's own pass.
        refine_mlp: refit the trunk's linear maps and each expert's down projection to the composed trunk.
        device: what passes run on, None for the GPU if there is one.
        top_k: experts per token, from 1 to the number of members; None for `TOP_K`, or for one member 1.
        temperature: > 0; router logits are divided by it, which at top_k = 1 changes nothing. Those of a ridge router
            whose columns are not normalised lie about 0 for other experts' tokens and about 1 for its own.
        weights: member name → ω > 0, its weight in every sum over members; 1 where absent.
        balance: `tokens` divides each member's statistics by its share of the tokens, so that one with many does not
            drown the others; `none` takes them as they are.
        to: a key of `OUTPUTS`.
        dtype: what the folder is written in, or None for the members' own.
        host: the architecture that carries it, where more than one does: its `model_type`, or `remote-code` for a
            modelling file of its own; None for the preferred one.
    """

    trunk: str = "regmean"
    trunk_options: Mapping[str, float] = field(default_factory=dict)
    router: str = "ridge"
    lam: float | str = 0.01
    normalize: bool = False
    bias: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    token_weight: str = "none"
    refine: int = 0
    refine_mlp: bool = False
    device: str | None = None
    top_k: int | None = None
    temperature: float = 0.05
    weights: Mapping[str, float] = field(default_factory=dict)
    balance: str = "none"
    to: str = "moe"
    dtype: str | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        for what, name, value, known in (
            ("trunk method", "trunk", self.trunk, TRUNKS),
            ("router method", "router", self.router, ROUTERS),
            ("output", "to", self.to, OUTPUTS),
            ("balance", "balance", self.balance, BALANCES),
            ("token weight", "token_weight", self.token_weight, TOKEN_WEIGHTS),
        ):
            if value not in known:
                raise InvalidInputError(
                    f"{what} {value!r} is none of {', '.join(known)}",
                    f"choose one of them: {name}={next(iter(known))!r}",
                )
        for name, number in self.trunk_options.items():
            defaults = TRUNKS[self.trunk].options
            if name not in defaults:
                raise InvalidInputError(
                    f"trunk method {self.trunk!r} has no option {name!r}",
                    f"its options are: {', '.join(defaults) or 'none'}",
                )
            least, most = _RANGES[name]
            if not least <= number <= most:
                raise InvalidInputError(
                    f"{name} is {number}, it must be from {least:g} to {most:g}", f"the default is {defaults[name]:g}"
                )
        if self.lam != AUTO and not (isinstance(self.lam, int | float) and math.isfinite(self.lam) and self.lam >= 0):
            raise InvalidInputError(
                f"lam is {self.lam}, it must be finite and 0 or more, or auto", "the default is 0.01"
            )
        if not 0 <= self.refine <= MOST_PASSES:
            raise InvalidInputError(
                f"refine is {self.refine}, it must be from 0 to {MOST_PASSES}", "the second pass is the last that helps"
            )
        if self.to != "moe" and (self.refine or self.refine_mlp):
            raise InvalidInputError(
                f"there is nothing to refine in a composition to {self.to}: it has no router", "drop --refine"
            )
        if self.bias and "bias" not in ROUTERS[self.router].options:
            raise InvalidInputError(
                f"router method {self.router!r} has no bias", "drop --bias, or choose --router domain-embedding"
            )
        if ROUTERS[self.router].features != OWN and (self.lam == AUTO or self.token_weight != "none"):
            what = "lam auto" if self.lam == AUTO else f"token weight {self.token_weight!r}"
            raise InvalidInputError(
                f"router method {self.router!r} is not solved from experts' statistics, and {what} was asked for",
                "drop it, or choose --router ridge",
            )
        if (self.refine or self.refine_mlp) and ROUTERS[self.router].features == BASE:
            raise InvalidInputError(
                f"router method {self.router!r} takes features of the base model, not of a refined one",
                "drop --refine, or choose --router ridge",
            )
        if self.refine_mlp and self.token_weight != "none" and not self.refine:
            raise InvalidInputError(
                f"a refit weighs no tokens, and token weight {self.token_weight!r} was asked for",
                "add a pass after it, which does: --refine 1",
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidInputError(
                f"temperature is {self.temperature}, it must be finite and more than 0", "the default is 0.05"
            )
        for name, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise InvalidInputError(
                    f"the weight of {name} is {weight}, it must be finite and more than 0", "the default is 1"
                )
        if self.dtype is not None and self.dtype not in WEIGHT_DTYPES:
            raise InvalidInputError(
                f"dtype {self.dtype!r} is none of {', '.join(WEIGHT_DTYPES)}", "choose one of them: --dtype bfloat16"
            )

    @classmethod
    def from_document(cls, document: object, names: Sequence[str], *, host: str | None = None) -> "Recipe":
        """Return the recipe whose `document` this is, which may come from anywhere.

        Args:
            document: the `recipe` of a `composition.json`.
            names: the members' names.
            host: which it does not have (see `Recipe`).

        Raises:
            CheckpointError: a key is unknown or missing, or a value is not what this program writes.
            InvalidInputError: there is no such recipe.
        """
        where = "the recipe"
        given = fields(document, _KINDS, where, optional=_KINDS)
        settings = {key: value for key, value in given.items() if key != "computed"}
        computed = fields(given.get("computed", {}), _COMPUTED, f"{where}, computed", optional=_COMPUTED)
        recipe = cls(**settings, device=computed.get("device"), host=host)
        check_written(given, recipe.document(names), where)
        return recipe

    def check_members(self, names: Sequence[str]) -> None:
        """Check the recipe against the members' names.

        Raises:
            InvalidInputError: a weight is for no member, or top_k is out of range.
        """
        for what, given in (("weight", self.weights), ("bias", self.bias)):
            if strangers := sorted(set(given) - set(names)):
                raise InvalidInputError(
                    f"there is a {what} for {', '.join(strangers)}, which is no member",
                    f"members are: {', '.join(names)}",
                )
        if self.to == "moe" and not 1 <= self.experts_per_token(len(names)) <= len(names):
            most = f"from 1 to {len(names)}, the number of members" if len(names) > 1 else "1, as there is one member"
            raise InvalidInputError(
                f"top-k is {self.top_k}, it must be {most}",
                f"give --top-k {len(names)} or less, or name more --experts",
            )

    def experts_per_token(self, members: int) -> int:
        """Return k for so many members."""
        return min(TOP_K, members) if self.top_k is None else self.top_k

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it, every default spelled out."""
        used = ROUTERS[self.router].options
        options = {
            "lam": self.lam if self.lam == AUTO else float(self.lam),
            "normalize": self.normalize,
            "bias": {name: float(self.bias.get(name, 0.0)) for name in names},
            "seed": self.seed,
        }
        routed = {
            "router": self.router,
            **{name: value for name, value in options.items() if name in used},
            "top_k": self.experts_per_token(len(names)),
            "temperature": float(self.temperature),
            "token_weight": self.token_weight,
            "refine": self.refine,
            "refine_mlp": self.refine_mlp,
        }
        if self.retakes or self.refine_mlp:
            routed["computed"] = self.pass_document(PassSettings())
        return {
            "to": self.to,
            "trunk": self.trunk,
            "trunk_options": self.method_options,
            **(routed if self.to == "moe" else {}),
            "weights": {name: float(self.weights.get(name, 1.0)) for name in names},
            "balance": self.balance,
            "dtype": self.dtype,
        }

    @property
    def retakes(self) -> bool:
        """The router's statistics are taken anew, from kept calibration tokens."""
        features = ROUTERS[self.router].features
        return features == BASE or (features == OWN and (self.token_weight != "none" or self.refine > 0))

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"trunk method {self.trunk!r}"

    @property
    def needs_base(self) -> bool:
        """The base model takes part, in the trunk or in the router."""
        routed = self.to == "moe" and (
            ROUTERS[self.router].features == BASE
            or (ROUTERS[self.router].features == OWN and self.token_weight == "advantage")
        )
        return TRUNKS[self.trunk].needs_base or routed

    def pass_document(self, settings: PassSettings) -> dict[str, Any]:
        """Return how passes run, as far as their numbers depend on that."""
        from registry.runtime.loading import device_name

        return {"batch_size": settings.batch_size, "device": device_name(self.device).partition(":")[0]}

    @property
    def method_options(self) -> dict[str, float]:
        """All parameters of the trunk method."""
        return {**TRUNKS[self.trunk].options, **{name: float(value) for name, value in self.trunk_options.items()}}
