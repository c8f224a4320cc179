"""Whether an expert's statistics can be told from those of the experts that are registered already."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from registry.composing import Member
from registry.errors import DamagedError, NotFoundError
from registry.maths.overlap import TOKENS_PER_DIRECTION, Overlap, overlap
from registry.maths.statistics import Statistics
from registry.progress import Progress, remark
from registry.sites import MLP_INPUT
from store.catalog import VersionRecord

INDISTINCT = 0.6
"""An overlap, mean over layers, from which on routing hardly tells two experts apart.

*Measured* on six fine-tuned experts (Llama, H = 256): those of alike text lie at 0.82 and above, others at 0.29 and
below.
"""

LAYERS = 8
"""Layers that are compared, spread evenly over the network: neighbours say much the same, wide ones take seconds."""


@dataclass(frozen=True)
class ExpertOverlap:
    """How far an expert's MLP inputs overlap with those of a registered version.

    Attributes:
        ref: the version.
        layers: layer → what it says, for as many layers as are compared.
    """

    ref: str
    layers: Mapping[int, Overlap]

    @property
    def routing(self) -> float:
        """Share of tokens that a linear router cannot tell apart, mean over layers, from 0 to 1."""
        return fmean(layer.routing for layer in self.layers.values())

    @property
    def is_indistinct(self) -> bool:
        """Routing will hardly tell the two apart."""
        return self.routing >= INDISTINCT


def overlaps(
    layers: Sequence[Statistics],
    members: Iterable[Member],
    progress: Progress,
    is_gone: Callable[[VersionRecord], bool] = lambda version: False,
) -> tuple[ExpertOverlap, ...]:
    """Return the overlap with each member whose MLP inputs have as many layers and channels, the largest first.

    Members with too few tokens for a comparison are left out, and those purged meanwhile (`is_gone`); with too few of
    its own, there is nothing to compare.
    """
    shape = (len(layers), layers[0].exponents.numel())
    comparable = [
        member
        for member in members
        if (member.architecture.num_hidden_layers, member.architecture.hidden_size) == shape
        and min(layers[0].count, *(taken.tokens for taken in member.version.statistics)) >= TOKENS_PER_DIRECTION
    ]
    chosen = spread(len(layers))
    found = []
    with progress("comparing", len(comparable) * len(chosen), "layer") as advance:
        for member in comparable:
            compared = {}
            try:
                for number in chosen:
                    compared[number] = overlap(layers[number], member.statistics(MLP_INPUT, number))
                    advance(1)
            except (DamagedError, NotFoundError) as error:  # it must not stand in the way of others
                if not is_gone(member.version):
                    remark(progress, f"the text of {member.version.ref} is not compared: {error.message}")
                continue
            found.append(ExpertOverlap(member.version.ref, compared))
    return tuple(sorted(found, key=lambda other: -other.routing))


def spread(layers: int) -> list[int]:
    """Return the numbers of at most `LAYERS` of so many layers, spread evenly."""
    count = min(LAYERS, layers)
    return [(2 * place + 1) * layers // (2 * count) for place in range(count)]
