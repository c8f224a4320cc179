"""Options of the trunk methods that add task vectors to the base model."""

from registry.composition.recipe.option import Limits, Option, OptionKind

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
