"""Sources of a host's tensors: rows of a dense model's, a trunk method's result, or a constant."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowSelection:
    """Rows of a dense tensor.

    Attributes:
        name: the dense tensor.
        rows: the rows, in order; None for all.
    """

    name: str
    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Trunk:
    """A trunk tensor: the trunk method's result over the members' rows, plus `offset`.

    `scales` multiply one row each; only reordered rows may have them.
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
    """A tensor of expert weights: consecutive rows of members' tensors, each part `(member, rows)`."""

    shape: tuple[int, ...]
    parts: tuple[tuple[int, RowSelection], ...]
