"""DARE: task vectors with entries dropped at random and the rest rescaled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from registry.composition.method import Compared, Trunk
from registry.methods.moe.trunks.task_vectors import COMBINE, DENSITY, SCALE, SUM
from registry.methods.works import DARE, MERGEME

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination


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
        from registry.maths.trunk.dare import combine

        return combine(tensor)
