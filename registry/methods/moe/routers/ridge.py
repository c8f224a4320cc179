"""Ridge routers: least squares from the members' own statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.composition.method import OWN, TRAIN_STEPS, TRAINED_SEEDS, Compared, Router
from registry.methods.moe.options import GATING, LAM, NORMALIZE, SOFTMAX_TOPK
from registry.methods.moe.refinement import PAPER

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.router.inputs import RouterInputs


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
        "refine-mlp": Compared({"refine_mlp": True}),
        "refine-mlp-top-1": Compared({"refine_mlp": True, "top_k": 1}),
        "oracle-refine-mlp": Compared({"refine_mlp": True}, oracle=True),
    }
    statistics = OWN

    def solve(self, inputs: RouterInputs) -> Tensor:
        from registry.maths.router.ridge import ridge_of_sum

        return ridge_of_sum(inputs.total(), inputs.lam, inputs.normalize)
