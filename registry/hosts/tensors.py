"""Sources of a host's tensors: rows of a dense model's, a trunk method's result, or a constant."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowSelection:
    """Rows of a dense tensor, in order; None for all."""

    name: str
    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Made:
    """An output tensor, and the way it is made."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Trunk(Made):
    """A trunk tensor: the trunk method's result over the members' rows, plus `offset`.

    `scales` multiply one row each; only reordered rows may have them.
    """

    rows: RowSelection
    offset: float = 0.0
    scales: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Constant(Made):
    """A tensor that the dense model does not have: one value throughout."""

    value: float


@dataclass(frozen=True)
class Experts(Made):
    """A tensor of expert weights: consecutive rows of members' tensors, each part `(member, rows)`."""

    parts: tuple[tuple[int, RowSelection], ...]


@dataclass(frozen=True)
class Router(Made):
    """The router of one layer, made by the router method from the members' statistics."""

    layer: int


@dataclass(frozen=True)
class RouterBias(Made):
    """The bias of the router of one layer, a constant of each expert's logit, (E,)."""

    layer: int


@dataclass(frozen=True)
class Entries(Made):
    """A tensor of zeros but for some entries.

    Attributes:
        entries: (index, value) of each.
        unit_power: values count in this power of the size of the embedding's rows, which depends on the members.
        thresholds: (index, (expert, other), factor) of entries that are a threshold of evidence times a factor.
    """

    entries: tuple[tuple[tuple[int, ...], float], ...] = ()
    unit_power: int = 0
    thresholds: tuple[tuple[tuple[int, ...], tuple[int, int], float], ...] = ()


@dataclass(frozen=True)
class Widened(Made):
    """A tensor, scaled, with zeros after it along one axis.

    Attributes:
        axis: the axis, of each part where experts are stacked: 0 for rows, -1 for columns.
        tail: (index along the axis, value) of what is not zero, of a vector.
    """

    inner: Trunk | Experts
    axis: int
    scale: float = 1.0
    tail: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class EvidenceEmbedding(Made):
    """The embedding with each token's evidence in reserved channels after its row: (V, H) → (V, H′).

    Channel H + e holds `size` · ρ · ℓ_e, channel H + E holds `constant` · ρ, the others 0
    (`registry.hosts.context`).

    Attributes:
        size: a, the size of evidence relative to the row.
        constant: the size of the constant relative to the row.
        epsilon: of the norm that reads it, so that ρ = √(row's mean square + epsilon); None where none does, ρ = 1.
    """

    inner: Trunk
    experts: int
    size: float
    constant: float
    epsilon: float | None


@dataclass(frozen=True)
class Evidence(Made):
    """Each token's evidence of the experts, ℓ, (V, E)."""


@dataclass(frozen=True)
class HeadMap(Made):
    """A projection of the experts of the last layer, which add their head maps to the stream.

    Attributes:
        shape: (I, H′) of gate and up, (H′, I) of down, or with E first and gate above up where experts are stacked.
        projection: `gate`, `up`, `down`, or `gate_up`.
        hidden_size: H, the channels that maps read and write.
        rank: of the maps.
        levels: (the gate's entry, the factor of the map) of each group of `rank` inner channels; the others are idle.
        channel: the channel that gates read.
        unit_power: the map counts in this power of the size of the embedding's rows.
    """

    experts: tuple[int, ...]
    projection: str
    hidden_size: int
    rank: int
    levels: tuple[tuple[float, float], ...]
    channel: int
    unit_power: int


@dataclass(frozen=True)
class OwnHeadMap(Made):
    """One expert's head map as it is, for a modelling file: M_e (H, H), or v_e (H,)."""

    expert: int
