"""Task arithmetic: the base model plus a combination of task vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from registry.composition.method import Settings, Trunk
from registry.composition.recipe.option import Limits, Option, OptionKind, Problem
from registry.methods.moe.trunks.task_vectors import SCALE
from registry.methods.works import MERGEME, TASK_ARITHMETIC

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination

COEFFICIENTS = Option(
    "coefficients", OptionKind.BY_MEMBER,
    "in place of --scale and --weights, what each member's task vector is multiplied by, 0 or less too; of every "
    "member.",
    "A=X,…", default={}, unset="none", limits=Limits(-1e4, 1e4), noun="coefficient", advanced=True, is_later=True,
)  # fmt: skip


class TaskArithmetic(Trunk):
    """The scaled sum of task vectors, or their sum by coefficients.

    Sources: Ilharco et al. 2022, §2; MergeME, §3.1.2; with coefficients Soup-of-Experts, Ablin et al. 2025, eq. 2–3.
    """

    name = "task-arithmetic"
    options = (replace(SCALE, default=0.3), COEFFICIENTS)
    words = "merged by task arithmetic"
    choice = "base model, plus the scaled sum of the changes"
    sentence = 'The trunk is merged by "Editing Models with Task Arithmetic".'
    works = (TASK_ARITHMETIC, MERGEME)
    needs_base = True

    def problem(self, values: Settings) -> Problem | None:
        if not values["coefficients"]:
            return None
        if "scale" in values["trunk_options"]:
            return Problem(
                ("coefficients", "scale"),
                "scale multiplies all task vectors, and coefficients multiply each",
                "drop --scale, and multiply the coefficients by it",
            )
        if any(weight != 1 for weight in (values["weights"] or {}).values()):
            return Problem(
                ("coefficients", "weights"),
                "weights multiply task vectors at a mean of 1, and coefficients multiply them as they are",
                "drop --weights",
            )
        return None

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        from registry.maths.trunk.task_arithmetic import combine

        return combine(tensor)
