"""Overlap of an expert's statistics with those of the registered experts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean
from threading import Lock
from typing import Any

import torch
from safetensors.torch import load, save

from registry.errors import ConflictError, DamagedError, IncompatibleError, NotFoundError, RegError
from registry.families.sites import MLP_INPUT
from registry.io.safetensors_file import header_of
from registry.maths.overlap import TOKENS_PER_DIRECTION, Overlap, Summary, summary_overlap
from registry.maths.statistics import Statistics
from registry.maths.threads import one_thread
from registry.member import load_member
from registry.progress import Progress, remark
from registry.registration.lineage import COMPARING
from registry.registration.summary_store import keep_summary, read_summary
from registry.workspace import Workspace
from store.catalog import VersionRecord

INDISTINCT = 0.6
"""Mean overlap over layers from which routing hardly distinguishes two experts.

*Measured* on six fine-tuned experts (Llama, H = 256): 0.82 and above for similar text, 0.29 and below for other text.
"""

LAYERS = 8  # layers that are compared, spread evenly over the network: adjacent layers overlap alike

OVERLAP_OF_ACTIVATIONS = (
    "The share of two experts’ tokens that a linear router cannot tell apart by what enters the MLPs."
)
"""What this overlap tells, for people; that of token counts is another (`predicted_routing`)."""


@dataclass(frozen=True)
class ExpertOverlap:
    """Overlap of an expert's MLP inputs with those of a registered version, by layer that is compared."""

    ref: str
    layers: Mapping[int, Overlap]

    @property
    def routing(self) -> float:
        """Share of tokens that a linear router cannot tell apart, mean over layers, from 0 to 1."""
        return fmean(layer.routing for layer in self.layers.values())

    @property
    def is_indistinct(self) -> bool:
        """True if routing will hardly distinguish the two."""
        return self.routing >= INDISTINCT


def overlaps(
    summaries: Mapping[int, Summary], workspace: Workspace, *, but: str | None = None
) -> tuple[ExpertOverlap, ...]:
    """Return the overlap with each active expert that has as many layers and channels, the largest first.

    Experts with too few tokens or with token counts alone, and those purged meanwhile, are skipped. If the expert
    itself has too few tokens, the result is empty. Summaries that the registry lacks are computed and stored.
    """
    if not summaries:
        return ()
    tokens = min(summary.count for summary in summaries.values())
    size = max(len(summary.mean) for summary in summaries.values())
    comparable = [
        version
        for version in workspace.versions(kind="expert")
        if version.name != but
        and min([tokens, *(record.tokens for record in version.statistics)]) >= TOKENS_PER_DIRECTION
        and any(record.site == MLP_INPUT for record in version.statistics)
        and (compared_layers(_size(version, "num_hidden_layers")), _size(version, "hidden_size"))
        == (list(summaries), size)
    ]
    progress, reading = workspace.progress, Lock()

    def compare(version: VersionRecord) -> dict[int, Overlap] | Exception:
        try:
            if (layers := _from_store(summaries, workspace, version)) is not None:
                return layers
            with reading:  # the Grams of one expert at a time
                return _from_statistics(summaries, workspace, version)
        except (DamagedError, NotFoundError, ConflictError, IncompatibleError, ValueError) as error:
            return error  # it must not block a registration; a ValueError: forged or inconsistent statistics

    results = []
    # Matrices of a hundred rows: several threads would wait for one another more than they compute.
    with (
        one_thread(),
        progress("comparing", len(comparable), "expert") as advance,
        ThreadPoolExecutor(COMPARING, "comparing", torch.set_num_threads, (1,)) as pool,
    ):
        for version, found in zip(comparable, pool.map(compare, comparable), strict=True):
            if not isinstance(found, Exception):
                results.append(ExpertOverlap(version.ref, found))
            elif not (isinstance(found, RegError) and workspace.is_purged(version)):
                why = found.message if isinstance(found, RegError) else str(found)
                remark(progress, f"the text of {version.ref} is not compared: {why}")
            advance(1)
    return tuple(sorted(results, key=lambda overlap: -overlap.routing))


def compared_layers(layers: int) -> list[int]:
    """Return the layers that are compared, out of a number of layers."""
    count = min(LAYERS, layers)
    return [(2 * index + 1) * layers // (2 * count) for index in range(count)]  # the middles of equal parts


def summarise(layers: Sequence[Statistics], progress: Progress) -> dict[int, Summary]:
    """Return compared layer → summary of MLP inputs; none without statistics or, with a remark, of forged ones."""
    if not layers:
        return {}
    try:
        with one_thread():  # a few narrow products, whose threads would wait for one another
            return {number: Summary.of(layers[number]) for number in compared_layers(len(layers))}
    except ValueError as error:
        remark(progress, f"its text is not compared: {error}")
        return {}


def pack(summaries: Mapping[int, Summary]) -> bytes:
    """Return summaries, by layer, as safetensors."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, summary in summaries.items():
        tensors |= {
            f"{layer}.mean": summary.mean,
            f"{layer}.directions": summary.directions.contiguous(),
            f"{layer}.spread": summary.spread,
            f"{layer}.rest": torch.tensor([summary.rest], dtype=torch.float64),
            f"{layer}.count": torch.tensor([summary.count]),
        }
    return save(tensors)


def unpack(data: bytes, layers: Iterable[int]) -> dict[int, Summary] | None:
    """Return the summaries of `layers` from the result of `pack`, or None if the data is of another form."""
    try:
        header_of(data)  # checked before safetensors reads it
        tensors = load(data)
        return {layer: _summary(tensors, layer) for layer in layers}
    except Exception:  # safetensors has errors of its own
        return None


def _summary(tensors: Mapping[str, torch.Tensor], layer: int) -> Summary:
    """Return the summary of one layer; any exception means that the data is of another form."""
    mean, directions, spread = (tensors[f"{layer}.{name}"] for name in ("mean", "directions", "spread"))
    rest, count = tensors[f"{layer}.rest"].item(), tensors[f"{layer}.count"].item()
    size, rank = directions.shape
    dtypes = (mean.dtype, directions.dtype, spread.dtype)
    if dtypes != (torch.float64, torch.float32, torch.float64) or (len(mean), len(spread)) != (size, rank):
        raise ValueError("dtypes or shapes do not match")
    finite = all(bool(part.isfinite().all()) for part in (mean, directions, spread))
    if not (finite and rank and 0 <= rest < torch.inf):
        raise ValueError("not finite")
    return Summary(mean, directions, spread, float(rest), int(count))


def _from_store(
    summaries: Mapping[int, Summary], workspace: Workspace, version: VersionRecord
) -> dict[int, Overlap] | None:
    """Return layer → overlap from a version's stored summaries, or None if they are missing or cannot be its own."""
    data = read_summary(workspace, version, "tokens")
    others = None if data is None else unpack(data, summaries)
    tokens = [record.tokens for record in version.statistics if record.site == MLP_INPUT]
    if others is None or any([summary.count] != tokens for summary in others.values()):
        return None
    try:
        layers = {layer: summary_overlap(summary, others[layer]) for layer, summary in summaries.items()}
    except (RuntimeError, ValueError):  # the channels differ, or a matrix has no eigenvectors
        return None
    return None if any(math.isnan(overlap.routing + overlap.subspace) for overlap in layers.values()) else layers


def _from_statistics(
    summaries: Mapping[int, Summary], workspace: Workspace, version: VersionRecord
) -> dict[int, Overlap]:
    """Return layer → overlap from a version's statistics, and store its summaries."""
    member = load_member(workspace, version)
    others = {layer: Summary.of(member.statistics(MLP_INPUT, layer)) for layer in summaries}
    keep_summary(workspace, version, "tokens", pack(others))
    return {layer: summary_overlap(summary, others[layer]) for layer, summary in summaries.items()}


def _size(version: VersionRecord, name: str) -> int:
    """Return a size of a version's architecture from the catalog; 0 if it has none."""
    content: Any = version.content or {}
    try:
        return max(0, int(content["architecture"][name]))
    except (LookupError, TypeError, ValueError):
        return 0
