"""Checks of the fields of a recipe, alone and together."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.composition.found import OUTPUTS
from registry.composition.recipe.fields import FIELDS, METHODS_OF, default, obstacle, options_of, output_of, resolved
from registry.composition.recipe.option import Problem
from registry.composition.recipe.shared_options import TRUNK_OPTIONS
from registry.errors import InvalidInputError

FROM_BASE = "from_base"
"""Key of recipe files and documents with the number of copies of the base model that are the experts."""
LEAST_COPIES, MOST_COPIES = 2, 1024


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
        if value != default(name, str(values.get("to"))) and (misfit := misplaced(name, values)):
            return misfit
    every = {name: resolved(name, values) for name in FIELDS}
    output = OUTPUTS[every["to"]]
    methods = (found.get(every[of]) for of, found in METHODS_OF.items() if output.name in FIELDS[of].outputs)
    for method in (output, *methods):
        if method is not None and (problem := method.problem({**every, TRUNK_OPTIONS: trunk_options})):
            return problem
    return None


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


def problem_of_copies(count: object, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem with a composition whose experts are copies of one base model, or None.

    Args:
        count: the number of copies.
        values: fields of the recipe; the others are those of copies, or at their defaults.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not LEAST_COPIES <= count <= MOST_COPIES:
        return Problem(
            (FROM_BASE,),
            f"the number of copies of the base model is {str(count)[:20]}, it must be from {LEAST_COPIES} to "
            f"{MOST_COPIES:,}",
            "such as --from-base 4",
        )
    output = output_of(values)
    return output.problem_of_copies(count, {**(output.copies or {}), **values})


def of_copies() -> dict[str, Any]:
    """Return fields of a composition whose experts are copies of one base model, where nothing else is asked for."""
    return dict(OUTPUTS.default.copies or {})


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
