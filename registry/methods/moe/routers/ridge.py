"""Ridge routers: least squares from the members' own statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.composition.method import OWN, Router
from registry.methods.moe.options import GATING, LAM, NORMALIZE

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
    statistics = OWN

    def solve(self, inputs: RouterInputs) -> Tensor:
        from registry.maths.router.ridge import ridge_of_sum

        return ridge_of_sum(inputs.total(), inputs.lam, inputs.normalize)
