"""Router methods of mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from registry.composition.method import BASE, COUNTS, OWN, SEEDS, TRAIN_STEPS, TRAINED_SEEDS, Compared, Router, Settings
from registry.composition.option import Option, OptionKind, Problem
from registry.composition.recipe.shared_options import CONTEXT_WINDOW
from registry.maths import router
from registry.methods.moe.options import (
    BIAS,
    GATING,
    LAM,
    NORMALIZE,
    PAPER,
    SOFTMAX_TOPK,
    SOLVES_AGAIN,
    without_refinement,
)
from registry.methods.works import BTX, FLEXOLMO, LEWIS, MARON, ROFORMER

if TYPE_CHECKING:
    from torch import Tensor

    from registry.composition.recipe.recipe import Recipe
    from registry.maths.router.inputs import RouterInputs


SHARED, MAPPED = "shared", "mapped"
"""Vocabularies of a mixture: one embedding and head for all experts, or a map in front of the head for each."""


class Context(Router):
    """Naive Bayes over unigrams of the text so far (`registry/maths/context/`); a layer of attention averages it."""

    name = "context"
    options = (
        CONTEXT_WINDOW,
        Option(
            "vocabulary", OptionKind.CHOICE,
            "shared, one head for all experts; mapped, a layer more that brings it near the expert's own.", "HOW",
            default=MAPPED, choices=(SHARED, MAPPED), label="Vocabulary", advanced=True,
            note="mapped: a layer brings the shared head near each expert’s own; shared: one head as it is",
        ),
    )  # fmt: skip
    words = "routed by the text so far"
    sentence = (
        "The router of every layer takes the expert whose calibration text used the tokens of the text so far most, "
        "compared with the others': naive Bayes over unigrams (Maron 1961; Lewis 1998). Each token's evidence is in "
        "the weights and is averaged over the text so far, by one layer of attention with rotary positions (RoFormer) "
        "or by the modelling file; nothing of it is trained."
    )
    works = (MARON, LEWIS, ROFORMER)
    compared = {
        "context": Compared(),
        "context-whole": Compared({"context_window": 0.0}),
        "context-shared": Compared({"vocabulary": SHARED}),
        "oracle-context": Compared(oracle=True),
    }
    statistics = COUNTS
    is_linear = False

    def problem(self, values: Settings) -> Problem | None:
        if not values["refine"]:
            return None
        return without_refinement(self.name, "is made from counts of tokens, which no pass through a model changes")


class Ridge(Router):
    """The closed-form ridge solution (DUME, eq. 6–7)."""

    name = "ridge"
    options = (LAM, NORMALIZE, GATING)
    words = "linear routers solved by ridge regression"
    sentence = (
        'The routers are the closed-form ridge solution of "Training-Free Dynamic Upcycling of Expert Language Models" '
        "(DUME), equations 6 and 7."
    )
    compared = {
        "oracle-mean": Compared({"trunk": "mean"}, oracle=True),
        "oracle-base": Compared({"trunk": "base"}, oracle=True),
        "oracle": Compared(oracle=True),
        "dume": Compared({"trunk": "mean", "refine": 1, **PAPER}),
        "dume-eq-4": Compared(
            {
                "trunk": "mean",
                "refine": 1,
                **PAPER,
                "gating": SOFTMAX_TOPK,
                "temperature": 1.0,
                "host": "remote-code",
            }
        ),
        "dume+": Compared({"trunk": "mean", "refine": 1, "train_steps": TRAIN_STEPS, **PAPER}, TRAINED_SEEDS),
        "regmean-top-1": Compared({"top_k": 1}),
        "regmean": Compared(),
        "refine-1": Compared({"refine": 1}),
        "refine-2": Compared({"refine": 2}),
    }
    statistics = OWN

    def solve(self, inputs: RouterInputs) -> Tensor:
        return router.ridge(inputs.total(), inputs.lam, inputs.normalize)


class DomainEmbedding(Router):
    """Mean features of each expert's text in the base model (FlexOlmo, §3.3.2, begins rows so)."""

    name = "domain-embedding"
    options = (LAM, NORMALIZE, GATING, BIAS)
    words = "routers from the base model’s embeddings of each domain"
    sentence = 'The routers are mean features of the experts\' text, as in "FlexOlmo", section 3.3.2.'
    works = (FLEXOLMO,)
    compared = {"domain-embedding": Compared(PAPER)}
    statistics = BASE

    def problem(self, values: Settings) -> Problem | None:
        if not values["refine"]:
            return None
        return without_refinement(self.name, "takes features of the base model, not of a refined one")

    def solve(self, inputs: RouterInputs) -> Tensor:
        return router.domain_embedding(inputs.statistics, inputs.lam, inputs.bias, inputs.normalize)


class Anchored(Router):
    """Rows that each expert was trained with beside the public expert (FlexOlmo, §3.3.1 and 3.3.2).

    A bias is a tensor of its own, which no gate.weight holds.
    """

    name = "anchored"
    options = (GATING, BIAS)
    defaults = {"temperature": 1.0}  # rows were trained without one
    words = "routers trained with the experts"
    sentence = (
        "The routers are the rows that each expert was trained with beside the frozen public expert, as in "
        '"FlexOlmo", sections 3.3.1 and 3.3.2.'
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
        if values["refine"]:
            return without_refinement(self.name, "has rows as they were trained, and a pass solves them again")
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
        return router.anchored(inputs.rows())


class Random(Router):
    """Random rows, as before training in BTX."""

    name = "random"
    options = (
        NORMALIZE,
        Option("seed", OptionKind.WHOLE, "the seed of its rows.", "N", default=0, advanced=True),
        GATING,
    )
    words = "random routers"
    sentence = 'The routers are random, as in "Branch-Train-MiX" before training.'
    works = (BTX,)
    compared = {
        "random": Compared({**PAPER, "trunk": "mean"}, SEEDS),
        "router-ft": Compared({**PAPER, "trunk": "mean", "train_steps": TRAIN_STEPS}, TRAINED_SEEDS),
    }
    statistics = None

    def solve(self, inputs: RouterInputs) -> Tensor:
        return router.random(inputs.digests, inputs.hidden_size, inputs.layer, inputs.seed, inputs.normalize)
