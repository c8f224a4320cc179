"""Anchored routers: rows that were trained with the experts, beside the frozen base model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from registry.composition.method import Router, Settings
from registry.composition.recipe.option import Problem
from registry.methods.moe.options import BIAS, GATING
from registry.methods.moe.refinement import SOLVES_AGAIN, refined, without_refinement
from registry.methods.works import FLEXOLMO

if TYPE_CHECKING:
    from torch import Tensor

    from registry.composition.recipe.recipe import Recipe
    from registry.maths.router.inputs import RouterInputs


class Anchored(Router):
    """Rows that each expert was trained with beside the public expert (FlexOlmo, §3.3.1).

    A bias is a tensor of its own, which no gate.weight holds.
    """

    name = "anchored"
    options = (GATING, BIAS)
    defaults = {"temperature": 1.0}  # rows were trained without one
    words = "routers trained with the experts"
    sentence = (
        "The routers are the rows that each expert was trained with beside the frozen public expert, as in "
        '"FlexOlmo", section 3.3.1.'
    )
    works = (FLEXOLMO,)
    compared = {}  # which only experts with rows of their own have
    statistics = None
    is_trained = True

    def problem(self, values: Settings) -> Problem | None:
        if values["trunk"] != "base":
            return Problem(
                ("router", "trunk"),
                f"router method {self.name!r} stacks rows that were trained on the base model's trunk, and trunk "
                f"method {values['trunk']!r} makes another",
                f"choose --trunk base, or --router {SOLVES_AGAIN}",
            )
        if name := refined(values):
            return without_refinement(
                name, self.name, "has rows as they were trained, and a refinement solves them again"
            )
        above = next((member for member, bias in values["bias"].items() if bias > 0), None)
        if above is not None:
            return Problem(
                ("bias", "router"),
                f"the bias of {above} is {values['bias'][above]:g}; with router method {self.name!r} a bias makes an "
                "expert stand back from the public one, and is 0 or less",
                f"give --bias {above}=-{values['bias'][above]:g}, or drop it",
            )
        return None

    def document(self, recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
        found = super().document(recipe, names)
        if not any(found["bias"].values()):
            del found["bias"]  # such compositions had their digest before there were biases
        return found

    def solve(self, inputs: RouterInputs) -> Tensor:
        from registry.maths.router.anchored import anchored

        return anchored(inputs.rows())
