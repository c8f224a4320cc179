"""The recipe of a mixture or of a dense model: trunk method, router method and their parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from registry.composition.recipe.coefficient_fit import CoefficientFit
from registry.composition.recipe.recipe_fields import (
    DENSE,
    FIELDS,
    FROM_COUNTS,
    FROM_ROWS,
    MEAN,
    MOE,
    TOP_K,
    TOPK_SOFTMAX,
    TRUNK_OPTIONS,
    default,
    options_of,
)
from registry.composition.recipe.recipe_rules import check_complete, check_named, first_problem
from registry.errors import InvalidInputError
from registry.io.schema import NUMBERS, OBJECT, TEXT, WHOLE, Kind, check_written, fields
from registry.maths.router import BASE, OWN, ROUTERS
from registry.maths.trunk import TRUNKS
from registry.runtime.loading import device_name
from registry.statistics.settings import PassSettings

OUTPUTS = (MOE, DENSE)
"""Outputs of a recipe: a sparse mixture, or one dense model in which the MLPs are combined as the trunk is."""

_KINDS = {name: one.document_kind for name, one in FIELDS.items() if not one.group}
_KINDS |= {TRUNK_OPTIONS: NUMBERS, "computed": OBJECT, "fit": OBJECT, "token_weight": TEXT}
for _name in ("routing", "routing_tokens", "mixing", "device", "host", "remote_code"):
    del _KINDS[_name]
"""Key of a document → what it holds."""
_COMPUTED = {
    "batch_size": WHOLE,
    "device": Kind("a kind of device", lambda value: isinstance(value, str) and value.isidentifier()),
}


@dataclass(frozen=True)
class Recipe:
    """Trunk method + router method + their parameters.

    Attributes:
        trunk: a key of `TRUNKS`.
        trunk_options: parameters of the trunk method, where they are not its defaults.
        coefficients: member name → α of any sign, which multiplies its task vector in place of scale and weights, of
            every member; empty for none.
        fit: what the coefficients were fitted for and on; None where they were not.
        combine: of ties and dare: `mean` or `sum` of the members' task vectors.
        router: a key of `ROUTERS`.
        lam: ridge strength ≥ 0, added to the summed Gram as it is (DUME eq. 6).
        normalize: router columns at unit length.
        bias: member name → what is added to its logits, as far as a router without a bias can (domain-embedding).
        seed: of a random router.
        context_window: τ in tokens; a context router weighs the past by exp(−distance / τ), at 0 all of it alike.
        vocabulary: of a context router: `shared` leaves one head to all experts, `mapped` adds a last layer whose maps
            bring it near the head of each token's expert.
        refine: passes of the members' kept tokens through the composed model, from which the router is solved; 0 takes
            the statistics of each expert's own pass.
        refine_mlp: refit the trunk's linear maps and each expert's down projection to the composed trunk.
        device: what passes run on, None for the GPU if there is one.
        top_k: experts per token, from 1 to the number of members; None for `TOP_K`, or for one member and for a
            context router 1.
        gating: weights of a token's experts: `topk-softmax`, the softmax over the k largest logits, which adds up to 1;
            or `softmax-topk`, the k largest of the softmax over all logits as they are (DUME eq. 4).
        temperature: > 0; router logits are divided by it, which at top_k = 1 changes nothing unless the gating is
            `softmax-topk`. By default 0.05, and 1 for an anchored router, whose rows were trained without one. The
            logits of a ridge router whose columns are not normalised lie about 0 for other experts' tokens and about 1
            for its own.
        weights: member name → ω > 0, its weight in every sum over members; 1 where absent.
        balance: `tokens` divides each member's statistics by its share of the tokens, so that one with many does not
            drown the others; `none` takes them as they are.
        to: a key of `OUTPUTS`.
        dtype: what the folder is written in, or None for the members' own.
        host: the architecture that carries it, where more than one does: its `model_type`, or `remote-code` for a
            modelling file of its own; None for the preferred one.
    """

    trunk: str = default("trunk")
    trunk_options: Mapping[str, float] = field(default_factory=dict)
    coefficients: Mapping[str, float] = field(default_factory=partial(default, "coefficients"))
    combine: str = default("combine")
    router: str = default("router")
    lam: float = default("lam")
    normalize: bool = default("normalize")
    bias: Mapping[str, float] = field(default_factory=partial(default, "bias"))
    seed: int = default("seed")
    context_window: float = default("context_window")
    vocabulary: str = default("vocabulary")
    refine: int = default("refine")
    refine_mlp: bool = default("refine_mlp")
    device: str | None = default("device")
    top_k: int | None = default("top_k")
    gating: str = default("gating")
    temperature: float = cast(float, None)  # that of the router method
    weights: Mapping[str, float] = field(default_factory=partial(default, "weights"))
    balance: str = default("balance")
    to: str = default("to")
    dtype: str | None = default("dtype")
    host: str | None = default("host")
    fit: CoefficientFit | None = None

    def __post_init__(self) -> None:
        if self.temperature is None:
            usual = FIELDS["temperature"]
            object.__setattr__(self, "temperature", usual.default_with.get(str(self.router), usual.default))
        if self.to not in OUTPUTS:
            raise InvalidInputError(
                f"output {self.to!r} is not one of {', '.join(OUTPUTS)}",
                f"choose one of them: to={MOE!r}; an ensemble has an EnsembleRecipe",
            )
        own = {name: getattr(self, name) for name in FIELDS if hasattr(self, name)}
        if problem := first_problem(own, self.trunk_options):
            raise problem.error()
        if self.fit is not None and not self.coefficients:
            raise InvalidInputError("there is the record of a fit, and no coefficients", "drop fit, or give both")

    @classmethod
    def from_document(cls, document: object, names: Sequence[str], *, host: str | None = None) -> "Recipe":
        """Read the recipe of a `composition.json`, which may come from anywhere.

        Args:
            document: the `recipe` of a `composition.json`.
            names: the members' names.
            host: the field `host` of the recipe, which the document does not have.

        Raises:
            CheckpointError: a key is unknown or missing, or a value is not what this program writes.
            InvalidInputError: the values make no recipe.
        """
        where = "the recipe"
        given = fields(document, _KINDS, where, optional=_KINDS)
        settings = {key: value for key, value in given.items() if key not in ("computed", "token_weight")}
        if "fit" in settings:
            settings["fit"] = CoefficientFit.from_document(settings["fit"], f"{where}, fit")
        computed = fields(given.get("computed", {}), _COMPUTED, f"{where}, computed", optional=_COMPUTED)
        recipe = cls(**settings, device=computed.get("device"), host=host)
        check_written(given, recipe.document(names), where)
        return recipe

    def check_members(self, names: Sequence[str]) -> None:
        """Check the recipe against the members' names.

        Raises:
            InvalidInputError: a number is for no member, a coefficient is missing, or top_k is out of range.
        """
        check_named(names, weight=self.weights, bias=self.bias)
        check_complete(names, self.coefficients)
        if self.to == "moe" and not 1 <= self.experts_per_token(len(names)) <= len(names):
            most = f"from 1 to {len(names)}, the number of members" if len(names) > 1 else "1, as there is one member"
            raise InvalidInputError(
                f"top-k is {self.top_k}, it must be {most}",
                f"give --top-k {len(names)} or less, or name more --experts",
            )

    def experts_per_token(self, members: int) -> int:
        """Return k for so many members."""
        usual = 1 if self.router in FROM_COUNTS else TOP_K
        return min(usual, members) if self.top_k is None else self.top_k

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it, every default spelled out."""
        used = ROUTERS[self.router].options
        options = {
            "lam": float(self.lam),
            "normalize": self.normalize,
            "bias": {name: float(self.bias.get(name, 0.0)) for name in names},
            "seed": self.seed,
            "context_window": float(self.context_window),
            "vocabulary": self.vocabulary,
        }
        if self.router in FROM_ROWS and not any(self.bias.values()):
            del options["bias"]  # such compositions had their digest before there were biases
        routed = {
            "router": self.router,
            **{name: value for name, value in options.items() if name in used},
            "top_k": self.experts_per_token(len(names)),
            **({"gating": self.gating} if self.gating != TOPK_SOFTMAX else {}),
            "temperature": float(self.temperature),
            "token_weight": "none",  # digests are made of it
            "refine": self.refine,
            "refine_mlp": self.refine_mlp,
        }
        if self.retakes or self.refine_mlp:
            routed["computed"] = self.pass_document(PassSettings())
        return {
            "to": self.to,
            "trunk": self.trunk,
            "trunk_options": self.method_options,
            **({"coefficients": {name: float(self.coefficients[name]) for name in names}} if self.coefficients else {}),
            **({"fit": self.fit.document()} if self.fit else {}),
            **({"combine": self.combine} if self.combine != MEAN else {}),
            **(routed if self.to == "moe" else {}),
            "weights": {name: float(self.weights.get(name, 1.0)) for name in names},
            "balance": self.balance,
            "dtype": self.dtype,
        }

    @property
    def retakes(self) -> bool:
        """The router's statistics are collected again, from kept calibration tokens."""
        features = ROUTERS[self.router].features
        return features == BASE or (features == OWN and self.refine > 0)

    @property
    def label(self) -> str:
        """A name for messages."""
        return f"trunk method {self.trunk!r}"

    @property
    def needs_base(self) -> bool:
        """The base model takes part, in the trunk or in the router."""
        return TRUNKS[self.trunk].needs_base or (self.to == "moe" and ROUTERS[self.router].features == BASE)

    def pass_document(self, settings: PassSettings) -> dict[str, Any]:
        """Return the settings of passes that their numbers depend on."""
        return {"batch_size": settings.batch_size, "device": device_name(self.device).partition(":")[0]}

    @property
    def method_options(self) -> dict[str, float]:
        """All parameters of the trunk method that have a part beside the coefficients."""
        if self.coefficients:
            return {}
        return {**options_of(self.trunk), **{name: float(value) for name, value in self.trunk_options.items()}}
