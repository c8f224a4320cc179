"""Whether an expert's statistics can be told from those of the experts that are registered already."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from registry.composing import Member
from registry.maths.overlap import Overlap, overlap
from registry.maths.statistics import Statistics
from registry.progress import Progress
from registry.sites import MLP_INPUT

INDISTINCT = 0.9
"""An overlap, mean over layers, from which on routing hardly tells two experts apart."""


@dataclass(frozen=True)
class ExpertOverlap:
    """How far an expert's MLP inputs overlap with those of a registered version.

    Attributes:
        ref: the version.
        layers: what each layer says, in order.
    """

    ref: str
    layers: tuple[Overlap, ...]

    @property
    def routing(self) -> float:
        """Share of tokens that a linear router cannot tell apart, mean over layers, from 0 to 1."""
        return fmean(layer.routing for layer in self.layers)

    @property
    def is_indistinct(self) -> bool:
        """Routing will hardly tell the two apart."""
        return self.routing >= INDISTINCT


def overlaps(layers: Sequence[Statistics], members: Iterable[Member], progress: Progress) -> tuple[ExpertOverlap, ...]:
    """Return the overlap with each member whose MLP inputs have as many layers and channels, the largest first."""
    shape = (len(layers), layers[0].exponents.numel())
    comparable = [
        member
        for member in members
        if (member.architecture.num_hidden_layers, member.architecture.hidden_size) == shape
    ]
    found = []
    with progress("comparing", len(comparable) * len(layers), "layer") as advance:
        for member in comparable:
            compared = []
            for number, layer in enumerate(layers):
                compared.append(overlap(layer, member.statistics(MLP_INPUT, number)))
                advance(1)
            found.append(ExpertOverlap(member.version.ref, tuple(compared)))
    return tuple(sorted(found, key=lambda other: -other.routing))
