"""The base model's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from registry.composition.method import Compared, Trunk

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.trunk.combination import Combination


class Base(Trunk):
    """The base model's tensors, unchanged; rows that it lacks are the members' average."""

    name = "base"
    words = "of the base model"
    choice = "those of the base model"
    compared = {"base-own": Compared()}
    needs_base = True
    needs_members = False

    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        from registry.maths.trunk.base import combine

        return combine(tensor)
