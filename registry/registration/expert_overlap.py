"""Whether an expert's statistics can be told from those of the experts that are registered already."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

from registry.errors import ConflictError, DamagedError, NotFoundError
from registry.families.sites import MLP_INPUT
from registry.io.limits import HEADER_BYTES
from registry.maths.overlap import TOKENS_PER_DIRECTION, Overlap
from registry.maths.statistics import Statistics
from registry.maths.summary import Summary, summary_overlap
from registry.member import Member, load_member
from registry.progress import Progress, remark
from registry.registration.summary_store import SummaryStore, summary_store
from registry.workspace import Workspace
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
class RegisteredExpert:
    """A registered expert to be compared with.

    Attributes:
        version: which.
        member: reads it; called only where its summaries are not there.
    """

    version: VersionRecord
    member: Callable[[], Member]


def registered_experts(workspace: Workspace, *, but: str | None = None) -> list[RegisteredExpert]:
    """Return the active experts, without those named `but`."""
    versions = workspace.versions(kind="expert")
    return [
        RegisteredExpert(version, partial(load_member, workspace, version))
        for version in versions
        if version.name != but
    ]


def overlaps(
    mine: Mapping[int, Summary],
    siblings: Iterable[RegisteredExpert],
    workspace: Workspace,
) -> tuple[ExpertOverlap, ...]:
    """Return the overlap with each sibling of as many layers and channels, the largest first.

    Siblings with too few tokens for a comparison are left out, and those purged meanwhile; with too few of its own,
    there is nothing to compare.

    Args:
        mine: what `summarise` gave.
        siblings: whom to compare with.
        workspace: the registry; summaries that it lacks are made and kept.
    """
    if not mine:
        return ()
    tokens, size = min(summary.count for summary in mine.values()), max(len(summary.mean) for summary in mine.values())
    comparable = [
        sibling
        for sibling in siblings
        if min([tokens, *(taken.tokens for taken in sibling.version.statistics)]) >= TOKENS_PER_DIRECTION
        and (compared_layers(_said(sibling.version, "num_hidden_layers")), _said(sibling.version, "hidden_size"))
        == (list(mine), size)
    ]
    found = []
    summaries, progress = summary_store(workspace), workspace.progress
    with progress("comparing", len(comparable), "expert") as advance:
        for sibling in comparable:
            try:
                compared = _kept(mine, sibling, summaries) or _anew(mine, sibling, summaries)
            except (DamagedError, NotFoundError, ConflictError) as error:  # it must not stand in the way of others
                if not workspace.is_purged(sibling.version):
                    remark(progress, f"the text of {sibling.version.ref} is not compared: {error.message}")
            except ValueError as error:  # forged or mistaken statistics
                remark(progress, f"the text of {sibling.version.ref} is not compared: {error}")
            else:
                found.append(ExpertOverlap(sibling.version.ref, compared))
            advance(1)
    return tuple(sorted(found, key=lambda other: -other.routing))


def compared_layers(layers: int) -> list[int]:
    """Return which of so many layers are compared."""
    count = min(LAYERS, layers)
    return [(2 * place + 1) * layers // (2 * count) for place in range(count)]


def summarise(layers: Sequence[Statistics], progress: Progress) -> dict[int, Summary]:
    """Return layer → summary of a model's MLP inputs, for those layers that are compared.

    Nothing, and a remark, where they are forged or mistaken.
    """
    try:
        return {number: Summary.of(layers[number]) for number in compared_layers(len(layers))}
    except ValueError as error:
        remark(progress, f"its text is not compared: {error}")
        return {}


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
    """Return the summaries of `layers` that `pack` packed, or None where it is nothing that this program packs."""
    from safetensors.torch import load

    try:
        if int.from_bytes(data[:8], "little") > HEADER_BYTES:
            return None
        tensors = load(data)
        return {layer: _summary(tensors, layer) for layer in layers}
    except Exception:  # safetensors has errors of its own
        return None


def _summary(tensors: Mapping[str, torch.Tensor], layer: int) -> Summary:
    """Return the summary of one layer; raises whatever it comes upon where there is none."""
    mean, directions, spread = (tensors[f"{layer}.{name}"] for name in ("mean", "directions", "spread"))
    rest, count = tensors[f"{layer}.rest"].item(), tensors[f"{layer}.count"].item()
    size, kept = directions.shape
    dtypes = (mean.dtype, directions.dtype, spread.dtype)
    if dtypes != (torch.float64, torch.float32, torch.float64) or (len(mean), len(spread)) != (size, kept):
        raise ValueError("of another kind")
    finite = all(bool(part.isfinite().all()) for part in (mean, directions, spread))
    if not (finite and kept and 0 <= rest < torch.inf):
        raise ValueError("not finite")
    return Summary(mean, directions, spread, float(rest), int(count))


def _kept(mine: Mapping[int, Summary], sibling: RegisteredExpert, summaries: SummaryStore) -> dict[int, Overlap] | None:
    """Return layer → overlap by what is kept of a sibling, None where that is not there or cannot be of it."""
    data = summaries.get(sibling.version, "tokens")
    theirs = None if data is None else unpack(data, mine)
    tokens = [taken.tokens for taken in sibling.version.statistics if taken.site == MLP_INPUT]
    if theirs is None or any([summary.count] != tokens for summary in theirs.values()):
        return None
    try:
        found = {layer: summary_overlap(mine[layer], theirs[layer]) for layer in mine}
    except (RuntimeError, ValueError):  # the channels are others, or a matrix has no eigenvectors
        return None
    return None if any(math.isnan(overlap.routing + overlap.subspace) for overlap in found.values()) else found


def _anew(mine: Mapping[int, Summary], sibling: RegisteredExpert, summaries: SummaryStore) -> dict[int, Overlap]:
    """Return layer → overlap, and keep what it was told by."""
    member = sibling.member()
    theirs = {number: Summary.of(member.statistics(MLP_INPUT, number)) for number in mine}
    summaries.put(sibling.version, "tokens", pack(theirs))
    return {layer: summary_overlap(mine[layer], theirs[layer]) for layer in mine}


def _said(version: VersionRecord, size: str) -> int:
    """Return a size of a version's architecture, as the catalog tells it; 0 where it tells none."""
    content: Any = version.content or {}
    try:
        return max(0, int(content["architecture"][size]))
    except (LookupError, TypeError, ValueError):
        return 0
