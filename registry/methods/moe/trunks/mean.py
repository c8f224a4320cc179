"""The average of the members' tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from registry.composition.method import Compared, Trunk
from registry.methods.works import BTX

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination


class Mean(Trunk):
    """The weighted average (BTX, §3.2; DUME, §3.1)."""

    name = "mean"
    words = "averaged"
    choice = "the average"
    sentence = 'The trunk is the average of the experts\', as in "Branch-Train-MiX".'
    works = (BTX,)
    compared = {"mean-own": Compared(), "soup": Compared({"to": "dense"})}
    tiled = True

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        from registry.maths.trunk.mean import combine

        return combine(tensor)
