"""The fields of a recipe, each described once.

`FIELDS` drives the checks of `Recipe` and `EnsembleRecipe`, the options of the commands that compose, the form of the
web pages, recipe files and their JSON Schema, and the table of docs/methods.md. Nothing here loads torch.
"""

from collections.abc import Mapping
from typing import Any

from registry.composition.recipe.recipe_field_type import FieldKind, Limits, RecipeField
from registry.io.dtypes import WEIGHT_DTYPES

MOE, DENSE, ENSEMBLE, HETERO, SIMOE = "moe", "dense", "ensemble", "hetero", "simoe"
TRUNK_OPTIONS = "trunk_options"
"""Key of a recipe that holds the parameters of its trunk method."""

TOP_K = 2
"""Experts per token by default, but for context routers, which take one.

*Measured* with RegMean's trunk and ridge columns as they are, at temperature 0.05: of five experts near the base model
88.6 (one per token 88.5; unit columns, one per token, 88.6), with two far ones beside them 77.0 (76.4; 76.0).
"""
CONTEXT_WINDOW = 64.0
"""τ of the context router's window by default, in tokens.

*Measured*, whole text and the first 32 tokens after a change of subject: near experts 91.2 and 52.7 (over the whole
text so far 91.3 and 32.7), far ones 86.6 and 45.8 (86.4 and 25.3), experts with look-alikes 81.2 and 42.7 (81.1 and
20.6). 24 tokens gain 4 to 7 points after a change, and cost 0.3 to 0.9 on whole text.
"""

MEAN, SUM = "mean", "sum"
"""What a trunk method takes of the members' task vectors."""

TOPK_SOFTMAX, SOFTMAX_TOPK = "topk-softmax", "softmax-topk"
"""Weights of a token's experts: the softmax over the k largest logits, or the k largest of the softmax over all."""

SHARED, MAPPED = "shared", "mapped"
"""Vocabularies of a mixture: one embedding and head for all experts, or a map in front of the head for each."""

PROMPT_PERPLEXITY = "prompt-perplexity"
LOGITS = "logits"
"""Routing and mixing of ensembles that have a modelling file of their own."""
SEQUENCE = "sequence"
"""Routing, in config.json, of members of several architectures: by the mean embedding of the first tokens."""

MOST_PASSES = 8

_ALL, _TRUNKS = (MOE, DENSE, ENSEMBLE), (MOE, DENSE)
_MIXTURES, _MIXED, _RIDGE = (MOE,), (MOE, ENSEMBLE, HETERO), (MOE, HETERO)
_EVERY = (*_ALL, HETERO, SIMOE)

FIELDS: dict[str, RecipeField] = {
    described.name: described
    for described in (
        RecipeField(
            "to", FieldKind.CHOICE,
            "What to make: moe, a sparse mixture; dense, one model whose MLPs are combined as the trunk is; "
            "ensemble, all members whole, their predictions mixed; hetero, members of several architectures behind one "
            "embedding and before one head; simoe, experts of reg train-simoe as they were trained (these three load "
            "with trust_remote_code=True).",
            "OUTPUT", _EVERY, default=MOE, choices=_EVERY, noun="output",
            label="Make",
            note="sparse mixture: each token goes through a few experts; dense: all weights merged into one model; "
            "ensemble: all members run, and their predictions are mixed; hetero: members of several architectures "
            "share one embedding and head; SIMoE: experts that were trained together",
        ),
        RecipeField(
            "routing", FieldKind.CHOICE, "For an ensemble: posterior, perplexity, prompt-perplexity or task-vector.",
            "METHOD", (ENSEMBLE,), default="posterior",
            choices=("posterior", "perplexity", PROMPT_PERPLEXITY, "task-vector"), noun="routing method",
            label="Routing", note="how an ensemble weighs its members",
        ),
        RecipeField(
            "routing_tokens", FieldKind.WHOLE,
            "For prompt-perplexity, task-vector and hetero: how many first tokens decide, 2 or more; of all but "
            "task-vector also 0, for the whole prompt, in generation alone.", "N", (ENSEMBLE, HETERO),
            only_with={"routing": (PROMPT_PERPLEXITY, "task-vector")}, default=32, limits=Limits(0.0),
            noun="routing-tokens", advanced=True,
        ),
        RecipeField(
            "mixing", FieldKind.CHOICE,
            "For an ensemble: probabilities, or logits, whose weighted sum goes through the softmax.", "HOW",
            (ENSEMBLE,), default="probabilities", choices=("probabilities", LOGITS),
            label="Mixing", note="whether an ensemble adds up its members’ probabilities or logits", advanced=True,
        ),
        RecipeField(
            "lead", FieldKind.TEXT, "For hetero: the member whose embedding and head all share.", "NAME", (HETERO,),
            unset="the member with the largest hidden size",
            label="Lead", note="the member whose embedding and head all share; by default the one with the largest "
            "hidden size", advanced=True,
        ),
        RecipeField(
            "trunk", FieldKind.CHOICE,
            "Trunk method: regmean, mean, base, ties, dare or task-arithmetic. In an ensemble, the members then share "
            "one trunk and keep their MLPs.", "METHOD",
            _ALL, default="regmean", default_with={ENSEMBLE: None}, unset="each member's own",
            choices=("regmean", "mean", "base", "ties", "dare", "task-arithmetic"), noun="trunk method",
            label="Trunk", note="combines the experts’ weights outside the MLPs, for a dense model all weights; by "
            "default regmean, in an ensemble not at all",
        ),
        RecipeField(
            "alpha", FieldKind.NUMBER, "For regmean: the share of the off-diagonal entries that stays.", "X", _ALL,
            only_with={"trunk": ("regmean",)}, default=1.0, limits=Limits(0.0, 1.0), group=TRUNK_OPTIONS,
            advanced=True,
        ),
        RecipeField(
            "density", FieldKind.NUMBER, "For ties and dare: the share of entries that stay.", "X", _ALL,
            only_with={"trunk": ("ties", "dare")}, default=0.8, limits=Limits(1e-3, 1.0), group=TRUNK_OPTIONS,
            advanced=True,
        ),
        RecipeField(
            "scale", FieldKind.NUMBER,
            "For ties, dare and task-arithmetic: what the merged task vector is multiplied by.", "X", _ALL,
            only_with={"trunk": ("ties", "dare", "task-arithmetic")}, default=1.0,
            default_with={"task-arithmetic": 0.3}, limits=Limits(-10.0, 10.0), group=TRUNK_OPTIONS,
            advanced=True,
        ),
        RecipeField(
            "coefficients", FieldKind.BY_MEMBER,
            "For task-arithmetic, in place of --scale and --weights: what each member's task vector is multiplied by, "
            "0 or less too; of every member.", "A=X,…", _ALL,
            only_with={"trunk": ("task-arithmetic",)}, default={}, unset="none", limits=Limits(-1e4, 1e4),
            noun="coefficient", advanced=True,
        ),
        RecipeField(
            "combine", FieldKind.CHOICE, "For ties and dare: the mean or the sum of task vectors.", "HOW", _ALL,
            only_with={"trunk": ("ties", "dare")}, default=MEAN, choices=(MEAN, SUM),
            label="Task vectors", advanced=True,
            note="whether ties and dare average the experts’ changes from the base model or add them up",
        ),
        RecipeField(
            "router", FieldKind.CHOICE, "Router method: context, ridge, domain-embedding, anchored or random.",
            "METHOD", _MIXTURES, default="context",
            choices=("context", "ridge", "domain-embedding", "anchored", "random"), noun="router method",
            label="Router", note="decides which experts a token goes to; this is how it is made",
        ),
        RecipeField(
            "context_window", FieldKind.NUMBER,
            "For context: how far back evidence counts, in tokens; 0 for the whole text so far.", "TOKENS", _MIXTURES,
            only_with={"router": ("context",)}, default=CONTEXT_WINDOW, limits=Limits(0.0, 1e6), noun="context-window",
            label="Context window", advanced=True,
            note="about how many tokens back the context router looks; 0: the whole text so far",
        ),
        RecipeField(
            "vocabulary", FieldKind.CHOICE,
            "For context: shared, one head for all experts; mapped, a layer more that brings it near the expert's own.",
            "HOW", _MIXTURES, only_with={"router": ("context",)}, default=MAPPED, choices=(SHARED, MAPPED),
            label="Vocabulary", advanced=True,
            note="mapped: a layer brings the shared head near each expert’s own; shared: one head as it is",
        ),
        RecipeField(
            "lam", FieldKind.NUMBER,
            "Ridge strength, with hetero relative.", "X", _RIDGE,
            only_with={"router": ("ridge", "domain-embedding")}, default=0.01, limits=Limits(0.0),
            label="Ridge strength", note="how much the router’s least squares is damped", advanced=True,
        ),
        RecipeField(
            "normalize", FieldKind.SWITCH,
            "Give router columns unit length, as the DUME paper does, or leave them as they are solved.", "",
            _MIXTURES, only_with={"router": ("ridge", "domain-embedding", "random")}, default=False,
            label="Unit router columns", advanced=True,
            note="gives the router equally long columns for all experts, as the DUME paper does",
        ),
        RecipeField(
            "bias", FieldKind.BY_MEMBER,
            "What is added to a member's logits: of domain-embedding as far as linear routers can, of anchored exactly "
            "and 0 or less.", "A=B,…", _MIXTURES,
            only_with={"router": ("domain-embedding", "anchored")}, default={}, unset="0", advanced=True,
        ),
        RecipeField(
            "seed", FieldKind.WHOLE, "For random: the seed of its rows.", "N", _MIXTURES,
            only_with={"router": ("random",)}, default=0, advanced=True,
        ),
        RecipeField(
            "refine", FieldKind.WHOLE,
            "Passes of the kept calibration tokens through the composed model, from which the routers are solved.",
            "N", _MIXTURES, default=0, limits=Limits(0.0, float(MOST_PASSES)),
            label="Refining passes", advanced=True,
            note="how often kept calibration tokens pass the composed model, to solve its routers on them",
        ),
        RecipeField(
            "refine_mlp", FieldKind.SWITCH,
            "Refit the trunk's linear maps and each expert's down projection on the same tokens.", "", _MIXTURES,
            default=False, label="Refit MLPs", advanced=True,
            note="fits the experts’ down projections and the trunk to kept calibration tokens",
        ),
        RecipeField(
            "device", FieldKind.TEXT, "A torch device for passes.", "DEVICE", _MIXTURES,
            unset="the GPU if there is one", advanced=True,
        ),
        RecipeField(
            "top_k", FieldKind.WHOLE, "Experts per token.", "N", _MIXED,
            unset=f"1 with context and with hetero, else {TOP_K}; with ensemble all members",
            limits=Limits(1.0), noun="top-k",
            label="Experts per token",
            note=f"how many experts each token goes to; by default 1 with the context router and with hetero, else "
            f"{TOP_K}; in an ensemble all",
        ),
        RecipeField(
            "gating", FieldKind.CHOICE,
            "Weights of a token's experts: topk-softmax, softmax over their logits, so that they add up to 1; "
            "softmax-topk, softmax over all experts' logits, the largest as they are.", "HOW", _MIXTURES,
            only_with={"router": ("ridge", "domain-embedding", "anchored", "random")}, default=TOPK_SOFTMAX,
            choices=(TOPK_SOFTMAX, SOFTMAX_TOPK),
            label="Gating",
            note="how a token’s experts are weighted: with topk-softmax adding up to 1, with softmax-topk less",
            advanced=True,
        ),
        RecipeField(
            "temperature", FieldKind.NUMBER, "Divides the router logits.", "X", _MIXED, default=0.05,
            default_with={ENSEMBLE: 1.0, "anchored": 1.0}, limits=Limits(0.0, above=True),
            label="Temperature", note="the lower, the more the best expert counts; by default 0.05, with anchored and "
            "in an ensemble 1", advanced=True,
        ),
        RecipeField(
            "weights", FieldKind.BY_MEMBER, "Members' weights in every sum over them.", "A=W,…", _ALL,
            only_with={"routing": ("posterior",)}, or_with=("trunk",), default={}, unset="1",
            limits=Limits(0.0, above=True), noun="weight",
        ),
        RecipeField(
            "balance", FieldKind.CHOICE,
            "none, or tokens: divide each member's statistics by its share of the tokens.", "HOW", _TRUNKS,
            default="none", choices=("none", "tokens"),
            label="Balance", note="none: members with more text count more; tokens: all count the same", advanced=True,
        ),
        RecipeField(
            "dtype", FieldKind.CHOICE, "bfloat16, float16 or float32: what the folder is written in.", "DTYPE", _EVERY,
            unset="the members' own", choices=WEIGHT_DTYPES,
            label="Written in", note="the number format of the weights; by default the members’ own", advanced=True,
        ),
        RecipeField(
            "host", FieldKind.TEXT, "Architecture of the folder, where several fit: a model type, or remote-code.",
            "HOST", _MIXTURES, unset="the preferred one", advanced=True,
        ),
        RecipeField(
            "remote_code", FieldKind.SWITCH,
            "Write a modelling file into the folder, which carries any family; it loads with trust_remote_code=True.",
            "", _MIXTURES, default=False, stands_for=("host", "remote-code"),
            label="Modelling file", advanced=True,
            note="writes code that fits any model family; it loads with trust_remote_code",
        ),
    )
}  # fmt: skip
"""Name → field, in the order of the command line's help."""

REMOVED: dict[str, tuple[Any, Any]] = {
    "lam": (FIELDS["lam"].default, "auto"),
    "token_weight": ("none", "advantage"),
    "refine_trunk": (False, True),
}
"""Key of earlier recipes → a value that is still read there, and the one that asked for what was removed."""

FROM_OWN_PASSES = ("ridge",)
FROM_BASE_PASSES = ("domain-embedding",)
FROM_COUNTS = ("context",)
"""Router methods that use statistics, by where these come from: the expert's own forward pass, the base model's, or
counts of tokens."""

FROM_ROWS = ("anchored",)
"""Router methods whose rows were trained with the experts."""

OF_COPIES: dict[str, Any] = {"router": "random", "trunk": "base"}
"""Fields of a mixture whose experts are copies of one base model."""
LEAST_COPIES, MOST_COPIES = 2, 1024

NEEDS_BASE = {
    "to": (SIMOE,),
    "routing": ("task-vector",),
    "trunk": ("base", "ties", "dare", "task-arithmetic"),
    "router": ("domain-embedding",),
}
"""Field → its values with which the base model takes part."""


def default(name: str, output: str = MOE) -> Any:
    """Return the default of a field for an output, a copy of it where it is a mapping; of no field, None.

    Fields that only earlier recipes have are at the value that asks for nothing.
    """
    if name not in FIELDS:
        return REMOVED.get(name, (None, None))[0]
    found = FIELDS[name].default_with.get(output, FIELDS[name].default)
    return dict(found) if isinstance(found, Mapping) else found


def options_of(trunk: str) -> dict[str, float]:
    """Return the parameters of a trunk method and their defaults."""
    return {
        one.name: one.default_with.get(trunk, one.default)
        for one in FIELDS.values()
        if one.group == TRUNK_OPTIONS and trunk in one.only_with["trunk"]
    }


_ALWAYS = ("to", "routing", "trunk", "router", "lam", "top_k")
"""Fields that say what a composition is, at their defaults too."""


def chosen(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe's document that say what it makes, and those that differ from their defaults."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        if key == TRUNK_OPTIONS:
            found |= {name: one for name, one in value.items() if one != _default_in(name, recipe)}
        elif value is not None and (key in _ALWAYS or value != _default_in(key, recipe)):
            found[key] = value
    return found


def _default_in(name: str, recipe: Mapping[str, Any]) -> Any:
    """Return what a field is by default beside the methods of a recipe."""
    methods = [str(recipe.get(name)) for name in ("to", "trunk", "router")]
    usual = FIELDS[name].default_with if name in FIELDS else {}
    return next((usual[method] for method in methods if method in usual), default(name))


def obstacle(one: RecipeField, values: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the field, and its value, because of which `one` has no part in a recipe; None where it has one.

    The value is None where that field is not given, and stands for no method there.

    Args:
        one: the field.
        values: fields of the recipe; the others are at their defaults.
    """
    output = values.get("to") or MOE
    if output not in one.outputs:
        return "to", output
    if any(values.get(other) and output in FIELDS[other].outputs for other in one.or_with):
        return None
    for other, methods in one.only_with.items():
        method = values.get(other) or default(other, output)
        if output in FIELDS[other].outputs and method not in methods:
            return other, method
    return None


def needs_base(values: Mapping[str, Any]) -> bool:
    """Return whether the base model takes part in a recipe, of which `values` are fields."""
    return any(
        values.get(name) in methods and obstacle(FIELDS[name], values) is None for name, methods in NEEDS_BASE.items()
    )
