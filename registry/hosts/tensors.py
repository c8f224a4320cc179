"""How a host's tensors are made of a dense model's: rows of them, a trunk method's result, or a constant."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowSelection:
    """Rows of a dense tensor.

    Attributes:
        name: the dense tensor.
        rows: which, in the order wanted; None for the whole.
    """

    name: str
    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Trunk:
    """A trunk tensor: the trunk method's result over the members' rows, plus `offset`.

    `scales`, which only reordered rows may have, multiply one row each.
    """

    shape: tuple[int, ...]
    rows: RowSelection
    offset: float = 0.0
    scales: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Constant:
    """A tensor that the dense model does not have: one value throughout."""

    shape: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Experts:
    """A tensor of expert weights: rows of members' tensors, one after the other, each `(member, rows)`."""

    shape: tuple[int, ...]
    parts: tuple[tuple[int, RowSelection], ...]
