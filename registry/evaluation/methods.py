"""Rows that `reg evaluate` composes to score: those of all methods, and those of a sweep over a field of one recipe.

The caller passes a function that composes (`Compose`), so that this module does not depend on composition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS
from registry.composition.method import Compared
from registry.composition.option import OptionKind
from registry.composition.recipe.fields import FIELDS, misplaced
from registry.composition.recipe.recipe import Recipe
from registry.errors import InvalidInputError
from registry.names.suggest import suggest

Compose = Callable[[Mapping[str, Any], Path], None]
"""Writes the composition of the experts by some fields of a recipe to an absent folder.

Raises InvalidInputError if these experts cannot be composed so."""

DENSE = ("base", "experts", "average")
"""Rows that need no composition: the base model, every domain's expert, the averaged weights of the experts."""


def _rows() -> Iterator[tuple[str, Compared]]:
    """Yield name and row of every method that has rows, with its method: of routers, of trunks, of outputs."""
    for of, methods in (("router", ROUTERS), ("trunk", TRUNKS), ("to", OUTPUTS)):
        for method in methods.values():
            rows = {method.name: Compared()} if method.compared is None else method.compared
            for name, row in rows.items():
                reference = OUTPUTS.default.reference if of == "trunk" and "to" not in row.settings else {}
                yield name, replace(row, settings={**reference, of: method.name, **row.settings})


METHODS: dict[str, Compared] = dict(_rows())
"""Name of a row → its settings, in the order of the table. `context` is the default recipe of `reg compose`."""


def named_methods(names: Sequence[str]) -> list[str]:
    """Return the named rows, each once, in table order; for `all` every row (InvalidInputError: one is unknown)."""
    known = [*DENSE, *METHODS]
    for name in names:
        if name != "all" and name not in known:
            raise InvalidInputError(
                f"method {name!r} is not one of {', '.join(known)}{suggest(name, known)}",
                "choose among them, or take all: --methods all",
            )
    return [name for name in known if name in names or "all" in names]


_METHODS = ("to", "routing", "trunk", "router")
SWEPT = tuple(
    name
    for name, one in FIELDS.items()
    if name not in (*_METHODS, "device") and one.kind is not OptionKind.BY_MEMBER and one.stands_for is None
)
"""Fields that a sweep can be over: those of one value that decide what is composed, within a method."""


@dataclass(frozen=True)
class Sweep:
    """A field of a recipe (one at most) with the values that it takes in turn, and the recipe."""

    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)

    def recipes(self) -> dict[str, Recipe]:
        """Return row → recipe, in the order of the values.

        (InvalidInputError: several fields, one that has no part in it, or a value missing, repeated or out of range.)
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
            changed = {name: value}
            if FIELDS[name].group:
                changed = {"trunk_options": {**self.recipe.trunk_options, name: value}}
            found[label] = self.recipe.replace(**changed)
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
