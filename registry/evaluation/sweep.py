"""Sweeps: one recipe for each of several values of a field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from registry.composition.recipe.fields import FIELDS
from registry.composition.recipe.option import OptionKind
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.rules import misplaced
from registry.errors import InvalidInputError
from registry.names.suggest import suggest

_METHODS = ("to", "routing", "trunk", "router")
SWEPT = tuple(
    name
    for name, one in FIELDS.items()
    if name not in (*_METHODS, "device") and one.kind is not OptionKind.BY_MEMBER and one.stands_for is None
)
"""Fields that a sweep can be over: those of one value that decide what is composed, within a method."""


@dataclass(frozen=True)
class Sweep:
    """A field of a recipe, and the values that it takes in turn.

    Attributes:
        values: field → its values, of one field; empty for no sweep.
        recipe: the rest of the recipe.
    """

    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)

    def recipes(self) -> dict[str, Recipe]:
        """Return row → recipe, in the order of the values.

        Raises:
            InvalidInputError: there are several fields, or one that there is not or that has no part in the recipe; or
                a value is missing, given twice, or out of its range.
        """
        if not self.values:
            return {}
        if not isinstance(self.values, Mapping):
            raise InvalidInputError("a sweep must be a field and its values", "such as sweep={'lam': [0.01, 0.1]}")
        if len(self.values) > 1:
            raise InvalidInputError(
                f"a sweep is over one field, and there are {len(self.values)}: {', '.join(self.values)}",
                "evaluate once for each",
            )
        ((name, values),) = self.values.items()
        self._check(name, values)
        found: dict[str, Recipe] = {}
        for value in values:
            label = f"{name}={f'{value:.12g}' if isinstance(value, float) else value}"
            if label in found:
                raise InvalidInputError(f"{label} is given twice", "give each value once")
            found[label] = self._with(name, value)
        return found

    def _check(self, name: str, values: Sequence[Any]) -> None:
        if name not in SWEPT:
            if name in _METHODS:
                hint = "compare methods by name: --methods NAME,…; or sweep within one: --recipe FILE"
            else:
                hint = f"fields to sweep are {', '.join(SWEPT)}"
            known = f"{name} is no field of one number or word" if name in FIELDS else f"there is no field {name!r}"
            message = f"{name} chooses a method" if name in _METHODS else f"{known}{suggest(name, SWEPT)}"
            raise InvalidInputError(f"cannot sweep: {message}", hint)
        if problem := misplaced(name, self.recipe.fields):
            raise InvalidInputError(problem.message, f"{problem.hint}; a recipe file can say so: --recipe FILE")
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InvalidInputError(f"the values of {name} must be a list", f"such as sweep={{{name!r}: [V1, V2]}}")
        if not values:
            raise InvalidInputError(f"there is no value of {name} to sweep", f"such as --sweep {name}=V1,V2")

    def _with(self, name: str, value: Any) -> Recipe:
        if FIELDS[name].group:
            return self.recipe.replace(trunk_options={**self.recipe.trunk_options, name: value})
        return self.recipe.replace(**{name: value})
