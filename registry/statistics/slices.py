"""Statistics by slices of windows, which tasks of a cluster take: they add up to those of one pass, bit for bit.

A slice is whole batches of consecutive windows, numbered over all windows of the calibration. Its batches are those of
the single pass, so that the model sees the same shapes; its sums are integers, so that any order of adding gives the
same. The file of a slice is named after the digest of what it depends on and that of its bytes: a slice that is taken
twice writes the same file.

Bits of a forward pass depend on the kind of processor, the number of torch's threads and the libraries
(`distributed/step.py`). The kind is a part of the digest, and slices of two kinds are never added.

Shapes: N windows of a calibration, B windows of a batch, V vocabulary.
"""

import re
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Any

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.distributed import Cluster, Step, Task
from registry.distributed.step import mixed_kinds, node_kind
from registry.errors import CheckpointError, ClusterError, DamagedError, first_line
from registry.families.sites import SITES
from registry.io.work_dirs import resumable_folder
from registry.progress import Progress, remark, silent
from registry.runtime.upcast import load_for_pass
from registry.statistics import file as statistics_file
from registry.statistics.cache import FileCache
from registry.statistics.file import Collected
from registry.statistics.forward_pass import computed_by, report_resumed, take_statistics
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import same_inputs
from store.digest import json_digest

_NAME = re.compile(r"slice-(\d{1,12})-(\d{1,12})-([0-9a-f]{16})-([0-9a-f]{32})\.[0-9a-f]{64}\.safetensors")
"""First window, the one after the last, kind of node, digest of what the slice depends on, digest of the bytes."""


@dataclass(frozen=True, order=True)
class Slice:
    """Windows `first` to `stop - 1` of a calibration: whole batches."""

    first: int
    stop: int

    def __str__(self) -> str:
        return f"windows {self.first} to {self.stop - 1}"


def plan_slices(windows: int, batch_size: int, count: int, taken: Sequence[Slice] = ()) -> list[Slice]:
    """Return slices that cover all N windows together with those that are taken already, in order.

    Args:
        count: slices that all windows are divided into, at most; each has one batch at least.
        taken: slices that need not be taken again; they do not overlap (ValueError: one is no run of whole batches).
    """
    batches = -(-windows // batch_size)
    free = [True] * batches
    for part in taken:
        if part.first % batch_size or (part.stop % batch_size and part.stop != windows) or part.stop > windows:
            raise ValueError(f"{part} are no whole batches of {batch_size}")
        for number in range(part.first // batch_size, -(-part.stop // batch_size)):
            free[number] = False
    numbers = [number for number in range(batches) if free[number]]
    count = max(1, min(count, len(numbers)))
    # Shares differ by one batch at most; where a share is no run, it becomes several slices.
    shares = [numbers[len(numbers) * part // count : len(numbers) * (part + 1) // count] for part in range(count)]
    runs = [
        [number for _, number in run]  # as far apart as their places in the share
        for share in shares
        for _, run in groupby(enumerate(share), key=lambda one: one[1] - one[0])
    ]
    return [Slice(run[0] * batch_size, min((run[-1] + 1) * batch_size, windows)) for run in runs]


@dataclass(frozen=True)
class SlicedPass:
    """A pass that is divided into slices: of the weights with a digest, with the device and the dtype named."""

    weights: str
    calibration: Calibration
    settings: PassSettings
    computed: dict[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint, weights: str, calibration: Calibration, settings: PassSettings) -> "SlicedPass":
        """Return the pass of a checkpoint, with `auto` replaced by the dtype that it stands for here."""
        computed = computed_by(checkpoint, settings)
        return cls(weights, calibration, replace(settings, dtype=str(computed["dtype"])), computed)

    @property
    def key(self) -> str:
        """Digest of everything that the whole depends on but the kind of node."""
        return json_digest([self.weights, self.calibration.digest, self.computed])

    def name(self, part: Slice, kind: str) -> str:
        """Return the name of a slice's file, without the digest of its bytes, if a kind of node takes it."""
        digest = json_digest([self.key, part.first, part.stop, kind])[:32]
        return f"slice-{part.first}-{part.stop}-{_short(kind)}-{digest}"


def take_slice(
    checkpoint: Checkpoint, model: Any, whole: SlicedPass, part: Slice, folder: Path, kind: str, progress: Progress
) -> Path:
    """Take the statistics of a slice, write them to a folder, where others may write the same, and return the file.

    (CalibrationError: an activation is NaN or infinite; StorageError: the folder cannot be written.)
    """
    of, windows = whole.calibration, slice(part.first, part.stop)
    own = Calibration(of.ids[windows], of.lengths[windows], of.label)
    collected = take_statistics(checkpoint, whole.weights, model, own, whole.settings, progress=progress)
    same = same_inputs(checkpoint, whole.settings.sites)
    sites = {site: layers for site, layers in collected.sites.items() if site not in same}
    name = whole.name(part, kind)
    fresh = folder / f"{name}.{uuid.uuid4().hex}.new"
    statistics_file.save(fresh, replace(collected, sites=sites, calibration_digest=of.digest))
    return FileCache(folder).keep(name, fresh)


def taken_slices(whole: SlicedPass, folder: Path, kind: str | None = None) -> dict[Slice, Path]:
    """Return the intact slices of a pass in a folder that do not overlap, all of one kind of node.

    By default it is the kind that has taken most windows.
    """
    by_kind: dict[str, dict[Slice, Path]] = {}
    for path in sorted(folder.glob("slice-*.safetensors")):
        if (match := _NAME.fullmatch(path.name)) is None:
            continue
        part = Slice(int(match[1]), int(match[2]))
        found = by_kind.setdefault(match[3], {})
        if any(part.first < other.stop and other.first < part.stop for other in found):
            continue
        with suppress(ValueError, FileNotFoundError):
            plan_slices(len(whole.calibration.ids), whole.settings.batch_size, 1, [part])
            if FileCache(folder).find(path.name.split(".")[0]) == path:
                found[part] = path
    if kind is not None:
        return by_kind.get(_short(kind), {})
    return max(by_kind.values(), key=lambda found: sum(part.stop - part.first for part in found), default={})


def add_slices(checkpoint: Checkpoint, whole: SlicedPass, paths: Iterable[Path]) -> Collected:
    """Return the sum of slices that cover all windows: to the bit what one pass takes.

    One site of one layer is read at a time (DamagedError: a file is unreadable, or windows are missing or double).
    """
    opened = []
    for path in paths:
        try:
            opened.append(statistics_file.load(path))
        except CheckpointError as error:
            hint = "run it again: it is taken again"
            raise DamagedError(f"{path} cannot be read: {first_line(error)}", hint) from error
    same = same_inputs(checkpoint, whole.settings.sites)
    sites = {
        site: tuple(
            reduce(add, (part.sites[site][layer] for part in opened)) for layer in range(len(opened[0].sites[site]))
        )
        for site in SITES[whole.settings.sites]
        if site not in same
    }
    tokens = next(iter(sites.values()))[0].count
    if tokens != whole.calibration.tokens:
        raise DamagedError(
            f"the slices count {tokens:,} of {whole.calibration.tokens:,} tokens", "run it again: they are taken again"
        )
    return Collected(
        whole.weights,
        {site: sites[same.get(site, site)] for site in SITES[whole.settings.sites]},
        whole.calibration.digest,
        whole.calibration.label,
        whole.computed,
    )


def _short(kind: str) -> str:
    return json_digest(kind)[:16]


@dataclass(frozen=True)
class SharedCheckpoint:
    """A checkpoint that several processes open by its path."""

    folder: Path
    label: str
    weights: str

    @classmethod
    def of(cls, hashed: HashedCheckpoint) -> "SharedCheckpoint":
        """Describe a checkpoint."""
        return cls(hashed.checkpoint.whole_folder.absolute(), hashed.checkpoint.label, hashed.saved_weights)


@dataclass(frozen=True)
class _Shared:
    checkpoint: SharedCheckpoint
    whole: SlicedPass
    folder: Path


_opened: dict[tuple[SharedCheckpoint, str, str | None], tuple[Checkpoint, Any]] = {}
"""The checkpoint and the model that this process loaded last: its next task mostly needs the same."""


def collect_slices(
    hashed: HashedCheckpoint,
    calibration: Calibration,
    settings: PassSettings,
    cluster: Cluster,
    partial: Path | None,
    progress: Progress,
) -> Collected:
    """Return the statistics of `calibration` as `take_statistics` does, bit for bit, taken by tasks of a cluster.

    Args:
        settings: settings of the pass, with the device of the tasks.
        partial: a folder that all nodes see, for the slices; after an interruption, the same pass goes on from them.

    Raises:
        CalibrationError, StorageError: an activation is NaN or infinite; `partial` cannot be written.
        CheckpointError: a node reads other weights in the checkpoint's folder.
        ClusterError: the nodes are of different kinds, or tasks lost their processes too often.
    """
    checkpoint = hashed.checkpoint
    whole = SlicedPass.of(checkpoint, hashed.weights, calibration, settings)
    above = None if partial is None else partial.absolute()
    with resumable_folder(above, whole.key, [hashed.weights]) as folder:
        shared = _Shared(SharedCheckpoint.of(hashed), whole, folder)
        taken = taken_slices(whole, folder)
        report_resumed(sum(_tokens(calibration, part) for part in taken), calibration, progress)
        before = set(taken)
        kind = _take(shared, taken, cluster, progress)
        if kind is not None and before - (own := taken_slices(whole, folder, kind)).keys():
            remark(progress, "what was counted before was counted on another kind of node: it is counted again")
            taken = own
            if _take(shared, taken, cluster, progress) not in (kind, None):
                raise ClusterError("nodes of another kind joined the cluster meanwhile", "run it again")
        return add_slices(checkpoint, whole, [taken[part] for part in sorted(taken)])


def _take(shared: _Shared, taken: dict[Slice, Path], cluster: Cluster, progress: Progress) -> str | None:
    """Take the slices that are missing, and return the kind of the nodes that took them; None if none is missing."""
    whole = shared.whole
    missing = plan_slices(len(whole.calibration.ids), whole.settings.batch_size, cluster.slots, [*taken])
    tasks = [Task(str(part), (part,), _tokens(whole.calibration, part)) for part in missing]
    device = str(whole.settings.device)
    step = Step("collecting", "token", take_in_task, shared, tasks, shared.folder, device)
    nodes: dict[str, str] = {}
    for finished in cluster.results(step, progress):
        nodes.setdefault(finished.kind, finished.node)
        taken[finished.task.arguments[0]] = shared.folder / finished.result
    if len(nodes) > 1:
        for path in taken.values():
            path.unlink(missing_ok=True)
        raise mixed_kinds(nodes, "on which the bits of a pass may differ", ", then run it again")
    return next(iter(nodes), None)


def take_in_task(shared: _Shared, part: Slice, *, progress: Progress) -> str:
    """Take one slice in a task, and return the name of its file."""
    settings = shared.whole.settings
    key = shared.checkpoint, settings.dtype, settings.device
    if key not in _opened:
        _opened.clear()
        opened = open_shared(shared.checkpoint)
        _opened[key] = opened, load_for_pass(opened.folder, settings.dtype, settings.device, progress=progress)
    checkpoint, model = _opened[key]
    kind = node_kind(str(settings.device))
    return take_slice(checkpoint, model, shared.whole, part, shared.folder, kind, progress).name


def open_shared(shared: SharedCheckpoint) -> Checkpoint:
    """Open a checkpoint by its path (CheckpointError: it is absent, or not what the main process has read)."""
    checkpoint = Checkpoint(shared.folder, label=shared.label, remote_code=True)
    if hash_checkpoint(checkpoint, silent).weights != shared.weights:
        raise CheckpointError(
            f"{shared.folder} holds other weights on this node than where the command was started",
            "name a folder on a file system that all nodes share",
        )
    return checkpoint


def _tokens(calibration: Calibration, part: Slice) -> int:
    return int(calibration.lengths[part.first : part.stop].sum())
