"""Checks of the fields of a recipe, alone and together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.composition.recipe.recipe_field_type import FieldKind
from registry.composition.recipe.recipe_fields import (
    DENSE,
    FIELDS,
    FROM_BASE_PASSES,
    FROM_COUNTS,
    FROM_ROWS,
    HETERO,
    LEAST_COPIES,
    MOE,
    MOST_COPIES,
    OF_COPIES,
    PROMPT_PERPLEXITY,
    SOFTMAX_TOPK,
    TRUNK_OPTIONS,
    obstacle,
    options_of,
)
from registry.errors import InvalidInputError

FROM_BASE = "from_base"
"""Key of recipe files and documents with the number of copies of the base model that are the experts."""


_STRICT = ("combine", "gating")
"""Fields that stay at their defaults where they have no part, as numbers by member do."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a recipe.

    Attributes:
        fields: the fields at fault, the first one to blame first.
        message: what is wrong.
        hint: what to do about it.
    """

    fields: tuple[str, ...]
    message: str
    hint: str

    def error(self, where: str = "") -> InvalidInputError:
        """Return the error to raise."""
        return InvalidInputError(f"{where}{self.message}", self.hint)


def first_problem(values: Mapping[str, Any], trunk_options: Mapping[str, Any] | None = None) -> Problem | None:
    """Return the first thing that is wrong with a recipe, or None.

    Args:
        values: fields of the recipe; the others are at their defaults.
        trunk_options: parameters of its trunk method.
    """
    trunk_options = trunk_options or {}
    if not isinstance(trunk_options, Mapping):
        return Problem((TRUNK_OPTIONS,), f"{TRUNK_OPTIONS} must be numbers by name", "such as: {'alpha': 0.9}")
    for name, value in values.items():
        if found := FIELDS[name].problem(value):
            return Problem((name,), *found)
    for name, value in trunk_options.items():
        if name not in FIELDS or not FIELDS[name].group:
            return _no_option(name, values)
        if misfit := misplaced(name, values):
            return misfit
        if found := FIELDS[name].problem(value):
            return Problem((name,), *found)
    for name, value in values.items():
        strict = FIELDS[name].kind is FieldKind.BY_MEMBER or name in _STRICT
        if strict and value != FIELDS[name].default and (misfit := misplaced(name, values)):
            return misfit
    if values.get("coefficients") and (problem := _beside_coefficients(values, trunk_options)):
        return problem
    return _contradiction({name: values.get(name, one.default) for name, one in FIELDS.items()})


def misplaced(name: str, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem that a field has no part in a recipe, or None where it has one."""
    one = FIELDS[name]
    if (found := obstacle(one, values)) is None:
        return None
    other, method = found
    if one.group and other == "trunk" and method is not None:
        return _no_option(name, values)
    message = f"{one.key} has no part in {FIELDS[other].called} {method!r}" if method else without_trunk(one.key)
    allowed = one.outputs if other == "to" else one.only_with[other]
    return Problem((name, other), message, f"drop it, or choose {other}={allowed[0]!r}")


def without_trunk(called: str) -> str:
    """Return the message that something has no part in an ensemble whose members do not share a trunk."""
    return f"{called} has no part in an ensemble whose members keep their own trunks"


def base_itself(values: Mapping[str, Any]) -> Problem | None:
    """Return the problem that a composition would be the base model, or None.

    Programs may use such a recipe, to run tokens through the base model; nobody wants it written.
    """
    if (values.get("to"), values.get("trunk")) != (DENSE, "base"):
        return None
    message = "a dense model with the trunk of the base is the base model itself"
    return Problem(("trunk", "to"), message, "choose another trunk")


def problem_of_copies(count: object, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem with a mixture whose experts are copies of one base model, or None.

    Args:
        count: the number of copies.
        values: fields of the recipe; the others are as in `OF_COPIES`, or at their defaults.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not LEAST_COPIES <= count <= MOST_COPIES:
        return Problem(
            (FROM_BASE,),
            f"the number of copies of the base model is {str(count)[:20]}, it must be from {LEAST_COPIES} to "
            f"{MOST_COPIES:,}",
            "such as --from-base 4",
        )
    values = {**OF_COPIES, **values}
    if (to := values.get("to") or MOE) != MOE:
        return Problem(
            ("to",),
            f"copies of one base model are the experts of a mixture, and --to {to} makes none: it would be that model",
            "drop --to, or --from-base",
        )
    if (router := values["router"]) != OF_COPIES["router"]:
        return Problem(
            ("router",),
            f"router method {router!r} cannot tell copies of one base model apart: they have the same weights, and no "
            "text of their own",
            f"choose --router {OF_COPIES['router']}, and train the mixture: reg train DIR --train all --data FILE",
        )
    if (trunk := values["trunk"]) != OF_COPIES["trunk"]:
        return Problem(
            ("trunk",),
            f"trunk method {trunk!r} has nothing to combine: copies of one base model have its trunk",
            f"choose --trunk {OF_COPIES['trunk']}",
        )
    if any(weight != 1 for weight in values.get("weights", {}).values()):
        return Problem(("weights",), "copies of one base model are equal, so weights change nothing", "drop --weights")
    if (balance := values.get("balance", "none")) != "none":
        return Problem(
            ("balance",),
            f"balance {balance!r} has nothing to balance: copies of one base model have no statistics",
            f"drop {FIELDS['balance'].option}",
        )
    if isinstance(top_k := values.get("top_k"), int) and top_k > count:
        more = f", or --from-base {top_k}" if top_k <= MOST_COPIES else ""
        return Problem(
            ("top_k",),
            f"top-k is {top_k}, it must be from 1 to {count}, the number of copies",
            f"give --top-k {count}{' or less' if count > LEAST_COPIES else ''}{more}",
        )
    if values.get("gating") == SOFTMAX_TOPK:
        return Problem(
            ("gating",),
            f"gating {SOFTMAX_TOPK!r} gives weights that need not add up to 1, and copies of one base model would not "
            "give what it gives",
            "drop --gating",
        )
    if refined := next((name for name in ("refine", "refine_mlp") if values.get(name)), None):
        return Problem(
            (refined,),
            "there is nothing to refine in copies of one base model, which have no calibration tokens",
            f"drop {FIELDS[refined].option}",
        )
    return None


def check_complete(names: Sequence[str], coefficients: Mapping[str, float]) -> None:
    """Check that there are coefficients of every member and of no other, where there are any.

    Raises:
        InvalidInputError: one is missing, or for a name that is not among `names`.
    """
    check_named(names, coefficient=coefficients)
    if coefficients and (missing := [name for name in names if name not in coefficients]):
        raise InvalidInputError(
            f"there is no coefficient for {', '.join(missing)}, and every member needs one",
            "give one, 0 to leave the task vector out: --coefficients "
            + ",".join(f"{name}={coefficients.get(name, 0):g}" for name in names),
        )


def check_named(names: Sequence[str], **by_member: Mapping[str, float]) -> None:
    """Check that numbers by member are for members.

    Args:
        names: the members' names.
        by_member: what messages call the numbers → member → number.

    Raises:
        InvalidInputError: a number is for a name that is not among `names`.
    """
    for called, numbers in by_member.items():
        if strangers := sorted(set(numbers) - set(names)):
            raise InvalidInputError(
                f"there is a {called} for {', '.join(strangers)}, which is not a member",
                f"members are: {', '.join(names)}",
            )


def _no_option(name: str, values: Mapping[str, Any]) -> Problem:
    trunk = str(values.get("trunk") or FIELDS["trunk"].default)
    listed = ", ".join(options_of(trunk)) or "none"
    fields = (name, "trunk") if name in FIELDS else (TRUNK_OPTIONS,)
    return Problem(fields, f"trunk method {trunk!r} has no option {name!r}", f"its options are: {listed}")


def _beside_coefficients(values: Mapping[str, Any], trunk_options: Mapping[str, Any]) -> Problem | None:
    """Return the problem that something else multiplies the task vectors, or None."""
    if "scale" in trunk_options:
        return Problem(
            ("coefficients", "scale"),
            "scale multiplies all task vectors, and coefficients multiply each",
            "drop --scale, and multiply the coefficients by it",
        )
    if any(weight != 1 for weight in (values.get("weights") or {}).values()):
        return Problem(
            ("coefficients", "weights"),
            "weights multiply task vectors at a mean of 1, and coefficients multiply them as they are",
            "drop --weights",
        )
    return None


def _contradiction(values: Mapping[str, Any]) -> Problem | None:
    router, to, tokens = values["router"], values["to"], values["routing_tokens"]
    whole = values["routing"] == PROMPT_PERPLEXITY or to == HETERO
    if tokens < 2 and (tokens == 1 or not whole):
        more = f"as nothing predicts the first token; with routing method {PROMPT_PERPLEXITY!r} also 0, for the whole"
        more = "or 0 for the whole" if to == HETERO else more
        return Problem(
            ("routing_tokens",),
            f"routing-tokens is {tokens}, it must be 2 or more, {more} prompt",
            f"the default is {FIELDS['routing_tokens'].default_text}",
        )
    refined = next((name for name in ("refine", "refine_mlp") if values[name]), None)
    if to == DENSE and refined:
        return Problem(
            (refined, "to"),
            f"there is nothing to refine in a composition to {to}: it has no router",
            f"drop {FIELDS[refined].option}",
        )
    if to != MOE:
        return None
    if router in FROM_ROWS and values["trunk"] != "base":
        return Problem(
            ("router", "trunk"),
            f"router method {router!r} stacks rows that were trained on the base model's trunk, and trunk method "
            f"{values['trunk']!r} makes another",
            "choose --trunk base, or --router ridge",
        )
    if router in FROM_ROWS and refined:
        return Problem(
            (refined, "router"),
            f"router method {router!r} has rows as they were trained, and a refinement solves them again",
            f"drop {FIELDS[refined].option}, or choose --router ridge",
        )
    above = next((member for member, bias in values["bias"].items() if bias > 0), None)
    if router in FROM_ROWS and above is not None:
        return Problem(
            ("bias", "router"),
            f"the bias of {above} is {values['bias'][above]:g}; with router method {router!r} a bias makes an expert "
            "stand back from the public one, and is 0 or less",
            f"give --bias {above}=-{values['bias'][above]:g}, or drop it",
        )
    if refined and router in FROM_BASE_PASSES:
        return Problem(
            (refined, "router"),
            f"router method {router!r} takes features of the base model, not of a refined one",
            f"drop {FIELDS[refined].option}, or choose --router ridge",
        )
    if values["refine"] and router in FROM_COUNTS:
        return Problem(
            ("refine", "router"),
            f"router method {router!r} is made from counts of tokens, which no pass through a model changes",
            "drop --refine, or choose --router ridge",
        )
    if values["refine_mlp"] and values["gating"] == SOFTMAX_TOPK:
        return Problem(
            ("gating", "refine_mlp"),
            f"a refit takes the weights of a token's experts to add up to 1, and gating {SOFTMAX_TOPK!r} was asked for",
            "drop --gating, or --refine-mlp",
        )
    return None
