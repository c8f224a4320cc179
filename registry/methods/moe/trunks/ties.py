"""TIES: task vectors trimmed, a sign elected, and those that agree combined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from registry.composition.method import Compared, Trunk
from registry.methods.moe.trunks.task_vectors import COMBINE, DENSITY, SCALE, SUM
from registry.methods.works import MERGEME, TIES

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination


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
        from registry.maths.trunk.ties import combine

        return combine(tensor)
