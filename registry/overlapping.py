"""Whether an expert's statistics can be told from those of the experts that are registered already."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from registry.composing import Member
from registry.errors import DamagedError, NotFoundError
from registry.maths.overlap import TOKENS_PER_DIRECTION, Overlap
from registry.maths.statistics import Statistics
from registry.maths.summary import Summary, summary_overlap
from registry.progress import Progress, remark
from registry.sites import MLP_INPUT
from registry.summaries import Summaries
from store.catalog import VersionRecord

INDISTINCT = 0.6
"""An overlap, mean over layers, from which on routing hardly tells two experts apart.

*Measured* on six fine-tuned experts (Llama, H = 256): those of alike text lie at 0.82 and above, others at 0.29 and
below.
"""

LAYERS = 8
"""Layers that are compared, spread evenly over the network: neighbours say much the same."""


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


@dataclass(frozen=True)
class Sibling:
    """A registered expert to be compared with.

    Attributes:
        version: which.
        member: reads it; called only where its summaries are not there.
    """

    version: VersionRecord
    member: Callable[[], Member]


def overlaps(
    mine: Mapping[int, Summary],
    siblings: Iterable[Sibling],
    summaries: Summaries,
    progress: Progress,
) -> tuple[ExpertOverlap, ...]:
    """Return the overlap with each sibling of as many layers and channels, the largest first.

    Siblings with too few tokens for a comparison are left out; with too few of its own, there is nothing to compare.

    Args:
        mine: `summarise`.
        siblings: whom to compare with.
        summaries: where theirs are kept; those that are not there are made and kept.
        progress: told of every sibling.
    """
    tokens = min(summary.count for summary in mine.values())
    comparable = [
        sibling
        for sibling in siblings
        if min([tokens, *(taken.tokens for taken in sibling.version.statistics)]) >= TOKENS_PER_DIRECTION
    ]
    found = []
    with progress("comparing", len(comparable), "expert") as advance:
        for sibling in comparable:
            try:
                theirs = _summaries_of(sibling, list(mine), summaries)
            except (DamagedError, NotFoundError) as error:  # it must not stand in the way of others
                remark(progress, f"the text of {sibling.version.ref} is not compared: {error.message}")
                continue
            if theirs is not None and all(len(theirs[layer].mean) == len(mine[layer].mean) for layer in mine):
                compared = {layer: summary_overlap(mine[layer], theirs[layer]) for layer in mine}
                found.append(ExpertOverlap(sibling.version.ref, compared))
            advance(1)
    return tuple(sorted(found, key=lambda other: -other.routing))


def compared_layers(layers: int) -> list[int]:
    """Return which of so many layers are compared."""
    count = min(LAYERS, layers)
    return [(2 * place + 1) * layers // (2 * count) for place in range(count)]


def summarise(layers: Sequence[Statistics]) -> dict[int, Summary]:
    """Return layer → summary of a model's MLP inputs, for those layers that are compared."""
    return {number: Summary.of(layers[number]) for number in compared_layers(len(layers))}


def pack(found: Mapping[int, Summary]) -> bytes:
    """Return summaries as safetensors."""
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    for layer, summary in found.items():
        tensors |= {
            f"{layer}.mean": summary.mean,
            f"{layer}.directions": summary.directions.contiguous(),
            f"{layer}.spread": summary.spread,
            f"{layer}.rest": torch.tensor([summary.rest], dtype=torch.float64),
            f"{layer}.count": torch.tensor([summary.count]),
        }
    return save(tensors)


def unpack(data: bytes, layers: Iterable[int]) -> dict[int, Summary] | None:
    """Return the summaries of `layers` that `pack` packed, or None where it was another program's."""
    from safetensors.torch import load

    try:
        tensors = load(data)
        return {
            layer: Summary(
                tensors[f"{layer}.mean"],
                tensors[f"{layer}.directions"],
                tensors[f"{layer}.spread"],
                float(tensors[f"{layer}.rest"]),
                int(tensors[f"{layer}.count"]),
            )
            for layer in layers
        }
    except Exception:  # safetensors has errors of its own
        return None


def _summaries_of(sibling: Sibling, layers: Sequence[int], summaries: Summaries) -> Mapping[int, Summary] | None:
    """Return a sibling's summaries of `layers`, or None where those are not the ones that it is compared at."""
    content = sibling.version.content
    if content is None or compared_layers(content["architecture"]["num_hidden_layers"]) != layers:
        return None
    data = summaries.get(sibling.version, "tokens")
    if (found := None if data is None else unpack(data, layers)) is None:
        member = sibling.member()
        found = {number: Summary.of(member.statistics(MLP_INPUT, number)) for number in layers}
        summaries.put(sibling.version, "tokens", pack(found))
    return found
