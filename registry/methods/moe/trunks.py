"""Trunk methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from registry.composition.method import Compared, Settings, Trunk
from registry.composition.option import Limits, Option, OptionKind, Problem
from registry.maths import trunk
from registry.methods.works import BTX, DARE, MERGEME, REGMEAN, TASK_ARITHMETIC, TIES

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination


MEAN, SUM = "mean", "sum"
"""What is taken of the members' task vectors."""

DENSITY = Option(
    "density", OptionKind.NUMBER, "the share of entries that stay.", "X", default=0.8, limits=Limits(1e-3, 1.0),
    advanced=True,
)  # fmt: skip

SCALE = Option(
    "scale", OptionKind.NUMBER, "what the merged task vector is multiplied by.", "X", default=1.0,
    limits=Limits(-10.0, 10.0), advanced=True,
)  # fmt: skip

COMBINE = Option(
    "combine", OptionKind.CHOICE, "the mean or the sum of task vectors.", "HOW", default=MEAN, choices=(MEAN, SUM),
    label="Task vectors", advanced=True, is_later=True,
    note="whether the experts’ changes from the base model are averaged or added up",
)  # fmt: skip


class RegMean(Trunk):
    """The least-squares solution over all members' inputs (Jin et al. 2022, §3)."""

    name = "regmean"
    options = (
        Option(
            "alpha", OptionKind.NUMBER, "the share of the off-diagonal entries that stays.", "X", default=1.0,
            limits=Limits(0.0, 1.0), advanced=True,
        ),
    )  # fmt: skip
    words = "merged by RegMean"
    choice = "nearest to what each expert computes"
    sentence = 'The trunk is solved for by "Dataless Knowledge Fusion by Merging Weights of Language Models", RegMean.'
    works = (REGMEAN,)
    compared = {
        "regmean-alpha-0.9": Compared({"trunk_options": {"alpha": 0.9}}),
        "regmean-paper": Compared(),
        "regmean-paper-top-2": Compared({"top_k": 2, "temperature": 0.1}),
        "soup-regmean": Compared({"to": "dense"}),
    }
    needs_inputs = True
    tiled = True
    solves_together = True

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        return trunk.regression_mean(tensor)

    def combine_together(self, tensors: Sequence[Combination]) -> Iterator[tuple[int, Tensor]]:
        return trunk.regression_means(tensors)


class Mean(Trunk):
    """The weighted average (BTX, §3.2; DUME, §2.2)."""

    name = "mean"
    words = "averaged"
    choice = "the average"
    sentence = 'The trunk is the average of the experts\', as in "Branch-Train-MiX".'
    works = (BTX,)
    compared = {"mean-own": Compared(), "soup": Compared({"to": "dense"})}
    tiled = True

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        return trunk.averaged(tensor)


class Base(Trunk):
    """The base model's tensors, unchanged; rows that it lacks are the members' average."""

    name = "base"
    words = "of the base model"
    choice = "those of the base model"
    compared = {"base-own": Compared()}
    needs_base = True
    needs_members = False

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        return trunk.of_base(tensor)


class Ties(Trunk):
    """Disjoint merging of trimmed task vectors (Yadav et al. 2023, §3; MergeME, §3.1.2)."""

    name = "ties"
    options = (DENSITY, SCALE, COMBINE)
    words = "merged by TIES"
    choice = f"base model, plus the largest {DENSITY.default:.0%} of changes of each tensor, where they agree in sign"
    sentence = 'The trunk is merged by "TIES-Merging: Resolving Interference When Merging Models".'
    works = (TIES, MERGEME)
    compared = {
        "ties": Compared(),
        "ties-sum": Compared({"combine": SUM, "trunk_options": {"scale": 1 / 3}}),
        "soup-ties": Compared({"to": "dense"}),
    }
    needs_base = True

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        return trunk.ties(tensor)


class Dare(Trunk):
    """Random entries of task vectors, rescaled (Yu et al. 2024, §3.2; MergeME, §3.1.2)."""

    name = "dare"
    options = (DENSITY, SCALE, COMBINE)
    words = "merged by DARE"
    choice = f"base model, plus a random {DENSITY.default:.0%} of the changes"
    sentence = 'The trunk is merged by "Language Models are Super Mario" (DARE).'
    works = (DARE, MERGEME)
    compared = {
        "dare": Compared(),
        "dare-sum": Compared({"combine": SUM, "trunk_options": {"scale": 1 / 3}}),
        "soup-dare": Compared({"to": "dense"}),
    }
    needs_base = True

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        return trunk.dare(tensor)


COEFFICIENTS = Option(
    "coefficients", OptionKind.BY_MEMBER,
    "in place of --scale and --weights, what each member's task vector is multiplied by, 0 or less too; of every "
    "member.",
    "A=X,…", default={}, unset="none", limits=Limits(-1e4, 1e4), noun="coefficient", advanced=True, is_later=True,
)  # fmt: skip


class TaskArithmetic(Trunk):
    """The scaled sum of task vectors, or their sum by coefficients.

    Sources: Ilharco et al. 2022, §2; with coefficients Soup-of-Experts, Ablin et al. 2025, §2.3, eq. 2.
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
        return trunk.task_arithmetic(tensor)
