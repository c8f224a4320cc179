"""Trunk methods: one file a method, one line a method in `TRUNKS`.

A method combines the members' tensors of one name, block of rows by block of rows, in float64:
`combine(members, base) -> Tensor`, members in name order, `base` None unless the method needs it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from registry.maths.trunk.base import base
from registry.maths.trunk.mean import mean


@dataclass(frozen=True)
class TrunkMethod:
    """How one trunk is made of many.

    Attributes:
        combine: see the module.
        needs_base: the base model takes part, so one must be registered.
        needs_members: the members' own trunks take part.
    """

    combine: Callable[[Sequence[Tensor], Tensor | None], Tensor]
    needs_base: bool = False
    needs_members: bool = True


TRUNKS = {
    "mean": TrunkMethod(mean),
    "base": TrunkMethod(base, needs_base=True, needs_members=False),
}
"""Name in a recipe → the method."""

__all__ = ["TRUNKS", "TrunkMethod", "mean"]
