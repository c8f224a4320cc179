"""Lineage: a common base model of a checkpoint and the registered versions, estimated from sampled weights.

Fine-tuning changes weights a little; models trained from different random weights share nothing. A few rows of every
tensor distinguish the two, quickly, before any forward pass, and without torch.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from registry.checkpoint import Checkpoint
from registry.checkpoint.version_files import VersionArrays, base_of_adapter
from registry.errors import DamagedError, IncompatibleError
from registry.io.display import few
from registry.io.limits import HEADER_VALUES
from registry.io.safetensors_file import header_of
from registry.io.untrusted import parse_json
from registry.progress import Progress, remark, silent
from registry.registration.summary_store import keep_summary, read_summary
from registry.workspace import Workspace
from store.arrays import CARRIERS, Block
from store.catalog import VersionRecord

SAMPLE = 2**14  # weights of a tensor that are compared: complete rows, spread evenly
_METADATA_KEY = "samples"  # key of [SAMPLE, name → [dtype, shape]] in the metadata of packed samples
COMPARING = 4  # versions whose samples are read and compared at once; each holds one model's samples
UNRELATED = 0.9  # median distance from which two models have no common ancestor; independent weights have 1

Verdict = Literal["same weights", "same base", "unrelated"]
Sampler = Callable[[str, npt.NDArray[np.int64]], Block]


@dataclass(frozen=True)
class WeightSamples:
    """A model whose tensors can be sampled."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    sample: Sampler  # (tensor name, numbers of rows) → these rows, in the carrier dtype
    stored: Mapping[str, Block] | None = None  # the rows `own`, if they were read before

    @cached_property
    def own(self) -> Mapping[str, Block]:
        """The rows of every tensor that are compared with models of equal shape; read once."""
        if self.stored is not None:
            return self.stored
        return {name: self.sample(name, _rows(shape[0], _width(shape))) for name, shape in self.shapes.items()}

    def real(self, name: str, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], float]:
        """Return rows of one tensor as real numbers (flat), and the sum of their squares."""
        shape = self.shapes[name]
        is_own = rows is _rows(shape[0], _width(shape))
        return self.reals[name] if is_own else _real(self.sample(name, rows), self.dtypes[name])

    @cached_property
    def reals(self) -> dict[str, tuple[npt.NDArray[np.float64], float]]:
        """The rows `own` as `real` returns them."""
        return {name: _real(block, self.dtypes[name]) for name, block in self.own.items()}


@dataclass(frozen=True)
class Relation:
    """Distance between a checkpoint and a registered version.

    Attributes:
        distances: tensor name → ‖a − b‖ / √(‖a‖² + ‖b‖²) of its samples a and b, from 0 (equal) to √2 (opposite);
            1 for independent weights.
    """

    ref: str
    kind: str
    distances: Mapping[str, float]
    grown: bool = False  # one of the two has rows for tokens that the other lacks

    @cached_property
    def distance(self) -> float:
        """Median distance over the matrices; norms and biases of unrelated models may be equal."""
        matrices = [value for name, value in self.distances.items() if "norm" not in name and "bias" not in name]
        return median(matrices or self.distances.values())

    @property
    def verdict(self) -> Verdict:
        """The relation that the distance implies."""
        if not self.grown and not any(self.distances.values()):
            return "same weights"
        return "unrelated" if self.distance >= UNRELATED else "same base"


def weights_of_checkpoint(checkpoint: Checkpoint) -> WeightSamples:
    """Return a checkpoint's weights."""
    shapes = checkpoint.shapes
    return WeightSamples(shapes, {name: checkpoint.dtype_of(name) for name in shapes}, checkpoint.sample)


def weights_of_version(workspace: Workspace, version: VersionRecord) -> WeightSamples:
    """Return a registered version's weights, read from its arrays."""
    loaded = VersionArrays.load(workspace, version)
    return WeightSamples(loaded.shapes, {name: loaded.weight(name).dtype for name in loaded.shapes}, loaded.sample)


def pack_weights(weights: WeightSamples) -> bytes:
    """Return the samples that a model is compared by, with dtypes and shapes, as safetensors."""
    tensors = {name: [weights.dtypes[name], list(shape)] for name, shape in sorted(weights.shapes.items())}
    return save(dict(weights.own), metadata={_METADATA_KEY: json.dumps([SAMPLE, tensors])})


def unpack_weights(data: bytes, sample: Sampler) -> WeightSamples | None:
    """Return the samples from the result of `pack_weights`, or None if the data is of another form.

    `sample` reads other rows, which models with another vocabulary are compared by.
    """
    try:
        size, tensors = parse_json(header_of(data).metadata[_METADATA_KEY].encode(), values=HEADER_VALUES)
        if size != SAMPLE:
            return None
        blocks = load(data)
        shapes = {name: tuple(map(int, shape)) for name, (_, shape) in tensors.items()}
        dtypes = {name: str(dtype) for name, (dtype, _) in tensors.items()}
        for name, shape in shapes.items():
            rows = _rows(shape[0], _width(shape))
            if blocks[name].shape != (len(rows), *shape[1:]) or not _are_weights(blocks[name], dtypes[name]):
                return None
    except Exception:  # safetensors has errors of its own
        return None
    return WeightSamples(shapes, dtypes, sample, blocks)


def relation(samples: WeightSamples, ref: str, kind: str, other: WeightSamples) -> Relation | None:
    """Return the distance of a checkpoint to another model, or None if shapes differ, but for rows of a vocabulary."""
    if samples.shapes.keys() != other.shapes.keys():
        return None
    for name, shape in other.shapes.items():
        first = 0 if ".layers." in name else 1
        if samples.shapes[name][first:] != shape[first:]:
            return None
    distances = {name: _distance(name, samples, other) for name in samples.shapes}
    return Relation(ref, kind, distances, grown=dict(samples.shapes) != dict(other.shapes))


def check_related(label: str, relations: Iterable[Relation]) -> None:
    """Raise IncompatibleError if a checkpoint is unrelated to every version of its shape, of which there are some."""
    nearest = sorted(relations, key=lambda relation: relation.distance)
    if nearest and all(relation.verdict == "unrelated" for relation in nearest):
        raise IncompatibleError(
            f"{label} is unrelated to every registered model of its shape: it does not come from the same base model "
            f"(nearest is {nearest[0].ref} at distance {nearest[0].distance:.2f}; 1 is chance, experts of one base "
            f"model stay below {UNRELATED})",
            "register the base model that it comes from (reg add-base NAME CKPT), or add --allow-unrelated",
        )


def equal_mlps(relations: Iterable[Relation], mlps: Sequence[str]) -> tuple[str, ...]:
    """Return a remark if a checkpoint has the MLPs of registered versions of its base model, but other weights.

    Adapters of attention alone leave MLPs as they are.
    """
    refs = [one.ref for one in relations if one.verdict == "same base" and not any(map(one.distances.get, mlps))]
    if not refs:
        return ()
    text = f"its MLPs equal those of {few(refs)}: a mixture routes between MLPs, and all else, where this one differs,"
    return (f"{text} is merged into one trunk; --to ensemble keeps it whole, as --to adapters does an adapter",)


def _distance(name: str, first: WeightSamples, second: WeightSamples) -> float:
    shape = first.shapes[name]
    count = min(shape[0], second.shapes[name][0])
    rows = _rows(count, _width(shape))
    (a, of_a), (b, of_b) = (weights.real(name, rows) for weights in (first, second))
    with np.errstate(all="ignore"):  # weights that are not finite are refused later, when all are read
        size = math.sqrt(of_a + of_b)
        return math.sqrt(_squared(a - b)) / size if size else 0.0


def _width(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])


@lru_cache(maxsize=4096)
def _rows(count: int, width: int) -> npt.NDArray[np.int64]:
    """Return the rows of a tensor of `count` rows that are compared; the same array object each time."""
    wanted = max(1, min(count, SAMPLE // width))
    return np.unique(np.linspace(0, count - 1, wanted).astype(np.int64))


def _are_weights(block: Block, dtype: str) -> bool:
    """Tell whether a block is in the carrier dtype of `dtype` and finite, as all registered weights are."""
    if block.dtype != np.dtype(CARRIERS[dtype][0]):
        return False
    if dtype == "bfloat16":
        return not bool(((block.astype(np.uint16) & 0x7F80) == 0x7F80).any())
    return bool(np.isfinite(block).all())


def _real(block: Block, dtype: str) -> tuple[npt.NDArray[np.float64], float]:
    if dtype == "bfloat16":  # the upper half of a float32
        block = (block.astype(np.uint32) << 16).view(np.float32)
    values = block.astype(np.float64).ravel()
    with np.errstate(all="ignore"):
        return values, _squared(values)


def _squared(values: npt.NDArray[np.float64]) -> float:
    """Return the sum of squares, on this thread alone: BLAS would wake others for a product of 16,384 numbers."""
    return float(np.einsum("i,i->", values, values))


def relations_of(
    workspace: Workspace, samples: WeightSamples, versions: Sequence[VersionRecord]
) -> tuple[Relation, ...]:
    """Return the distance to each version of its shape, the nearest first, with remarks on those not compared.

    Adapters whose base model is among them are not compared: they are known to be of that.
    """
    versions = _without_adapters(versions)
    return _relations(workspace, samples, versions, partial(samples_of_version, workspace), workspace.progress)


def _without_adapters(versions: Sequence[VersionRecord]) -> list[VersionRecord]:
    weights = {(version.content or {}).get("weights") for version in versions}
    return [version for version in versions if base_of_adapter(version) not in weights - {None}]


def confirm_related(
    workspace: Workspace,
    label: str,
    samples: WeightSamples,
    versions: Sequence[VersionRecord],
    relations: Sequence[Relation],
) -> None:
    """Raise IncompatibleError if a checkpoint is unrelated to every version of its shape, of which there are some.

    The arrays decide, not the summaries that `relations` come from: first those of the nearest relatives, then those of
    all versions.
    """
    by_ref = {version.ref: version for version in versions}
    stored = partial(weights_of_version, workspace)
    for estimate in relations:
        if estimate.verdict == "unrelated":
            break
        confirmed = _relations(workspace, samples, [by_ref[estimate.ref]], stored, silent)
        if confirmed and confirmed[0].verdict != "unrelated":
            return
    check_related(label, _relations(workspace, samples, _without_adapters(versions), stored, silent))


def samples_of_version(workspace: Workspace, version: VersionRecord) -> WeightSamples:
    """Return samples of a version's weights: its summary, else read from its arrays, and stored."""

    def sample(name: str, rows: npt.NDArray[np.int64]) -> Block:
        return weights_of_version(workspace, version).sample(name, rows)

    summary = read_summary(workspace, version, "weights")
    if summary is not None and (samples := unpack_weights(summary, sample)) is not None:
        return samples
    samples = weights_of_version(workspace, version)
    if base_of_adapter(version) is None:  # those of an adapter would be as large as it is
        keep_summary(workspace, version, "weights", pack_weights(samples))
    return samples


def _relations(
    workspace: Workspace,
    samples: WeightSamples,
    versions: Sequence[VersionRecord],
    weights: Callable[[VersionRecord], WeightSamples],
    progress: Progress,
) -> tuple[Relation, ...]:
    """Return the distance to each version of equal shape, the nearest first, given what reads a version's samples.

    A version whose arrays are damaged is skipped with a remark, so that it does not block others, nor its own repair. A
    version purged meanwhile is skipped silently.
    """

    def compare(version: VersionRecord) -> Relation | DamagedError | None:
        try:
            return relation(samples, version.ref, version.kind, weights(version))
        except DamagedError as error:
            return error

    relations = []
    if versions:
        _ = samples.reals  # read by one thread, before several ask for it
    with ThreadPoolExecutor(COMPARING, thread_name_prefix="comparing") as pool:
        for version, found in zip(versions, pool.map(compare, versions), strict=True):
            if isinstance(found, Relation):
                relations.append(found)
            elif found is not None and not workspace.is_purged(version):
                remark(progress, f"{version.ref} is not compared: {found.message}")
    return tuple(sorted(relations, key=lambda other: other.distance))


def relations_of_version(workspace: Workspace, ref: str) -> tuple[Relation, ...]:
    """Return the distance of a version to the others of its shape (arguments and errors as `Registry.relations`)."""
    version = workspace.resolve(ref)
    with workspace.reading(version):
        workspace.verified_arrays(version)
        others = [other for other in workspace.versions() if other.id != version.id]
        return relations_of(workspace, samples_of_version(workspace, version), others)
