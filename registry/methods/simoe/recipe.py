"""The recipe of a SIMoE: experts as they were trained leave nothing to choose but the dtype."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from registry.composition.recipe.recipe_fields import FIELDS, SIMOE, default
from registry.composition.recipe.recipe_rules import first_problem
from registry.io.schema import check_written, fields

TO_SIMOE = SIMOE
"""Output that a composition's document names."""

_KINDS = {name: FIELDS[name].document_kind for name in ("to", "dtype")}


@dataclass(frozen=True)
class SimoeRecipe:
    """The recipe of experts of `train_simoe` in one model, as they were trained (SIMoE, Chen et al. 2025).

    Attributes:
        dtype: what the folder is written in, or None for the members' own.
    """

    dtype: str | None = default("dtype")

    def __post_init__(self) -> None:
        if problem := first_problem({"to": TO_SIMOE, "dtype": self.dtype}):
            raise problem.error()

    @property
    def to(self) -> str:
        """The output, as `Recipe.to`."""
        return TO_SIMOE

    @property
    def label(self) -> str:
        """A name for messages."""
        return f"output {TO_SIMOE!r}"

    @property
    def needs_base(self) -> bool:
        """The base model takes part."""
        return True

    @classmethod
    def from_document(cls, document: object, names: Sequence[str]) -> "SimoeRecipe":
        """Read the recipe of a `composition.json` (arguments and errors as `Recipe.from_document`)."""
        given = fields(document, _KINDS, "the recipe")
        recipe = cls(given["dtype"])
        check_written(given, recipe.document(names), "the recipe")
        return recipe

    def check_members(self, names: Sequence[str]) -> None:
        """Check the recipe against the members' names: any go."""

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it."""
        return {"to": TO_SIMOE, "dtype": self.dtype}
