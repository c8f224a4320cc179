"""Recipes as flat values by field, which command lines, forms and files write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry import composition
from registry.composition.recipe.coefficient_fit import CoefficientFit
from registry.composition.recipe.recipe_fields import ENSEMBLE, FIELDS, HETERO, SIMOE, TRUNK_OPTIONS, obstacle
from registry.composition.recipe.recipe_rules import base_itself


def make_recipe(values: Mapping[str, Any], fit: CoefficientFit | None = None) -> composition.AnyRecipe:
    """Make the recipe of some fields, with trunk options among them; the others are at their defaults.

    Args:
        values: fields of the recipe.
        fit: of its coefficients, if they were fitted; dropped where it has none.

    Raises:
        InvalidInputError: a value is not what its field holds, or the fields contradict each other.
    """
    if problem := base_itself(values):
        raise problem.error()
    own: dict[str, Any] = {}
    options: dict[str, float] = {}
    for name, value in values.items():
        one = FIELDS[name]
        if one.stands_for is not None:
            own |= [one.stands_for] if value else []
        elif one.group == TRUNK_OPTIONS:
            options[name] = value
        else:
            own[name] = value
    if own.get("to") == ENSEMBLE:
        del own["to"]
        return composition.EnsembleRecipe(**own, trunk_options=options)
    if own.get("to") == HETERO:
        del own["to"]
        return composition.HeteroRecipe(**own, trunk_options=options)
    if own.get("to") == SIMOE:
        del own["to"]
        return composition.SimoeRecipe(**own)
    return composition.Recipe(**own, trunk_options=options, fit=fit if own.get("coefficients") else None)


def values_of(recipe: composition.AnyRecipe) -> dict[str, Any]:
    """Return the fields that have a part in a recipe, as `make_recipe` takes them, in the order of `FIELDS`.

    Fields that the program decides on are left out: None, and empty numbers by member.
    """
    values = {name: getattr(recipe, name, None) for name in FIELDS} | dict(getattr(recipe, TRUNK_OPTIONS, {}))
    return {
        name: value
        for name, value in values.items()
        if value is not None and value != {} and obstacle(FIELDS[name], values) is None
    }


def overlay(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with others over them; what has no part beside these is dropped.

    Of a recipe that is turned into an ensemble the trunk is dropped too: members keep their own unless asked to share.

    Args:
        values: fields of a recipe.
        over: fields that win.
    """
    if over.get("to") == ENSEMBLE and values.get("to") != ENSEMBLE:
        values = {name: value for name, value in values.items() if name != "trunk"}
    merged = {**values, **over}
    for name, value in over.items():
        if (short := FIELDS[name].stands_for) and value:
            merged.pop(short[0], None)
    return {name: value for name, value in merged.items() if name in over or obstacle(FIELDS[name], merged) is None}
