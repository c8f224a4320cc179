"""RegMean: each linear map such that, on every member's inputs, it gives what that member gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from registry.composition.method import Compared, Trunk
from registry.composition.recipe.option import Limits, Option, OptionKind
from registry.methods.works import REGMEAN

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination


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
        from registry.maths.trunk.regmean import combine

        return combine(tensor)

    def combine_together(self, tensors: Sequence[Combination]) -> Iterator[tuple[int, Tensor]]:
        from registry.maths.trunk.regmean import combine_together

        return combine_together(tensors)
