"""Random routers, to be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.composition.method import SEEDS, TRAIN_STEPS, TRAINED_SEEDS, Compared, Router
from registry.composition.recipe.option import Option, OptionKind
from registry.methods.moe.options import GATING, NORMALIZE
from registry.methods.moe.refinement import PAPER
from registry.methods.works import BTX

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.router.inputs import RouterInputs


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
        from registry.maths.router.random import random

        return random(inputs.digests, inputs.hidden_size, inputs.layer, inputs.seed, inputs.normalize)
