"""A pass over calibration tokens on a cluster: each task takes a slice of the windows, and their sums are added."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.distributed import Cluster, Step, Task
from registry.distributed.node_kind import node_kind
from registry.errors import CheckpointError, ClusterError
from registry.io.work_dirs import resumable_folder, temporary_folder
from registry.progress import Progress, remark, silent
from registry.runtime.upcast import load_for_pass
from registry.statistics.file import Collected
from registry.statistics.settings import PassSettings
from registry.statistics.slices import Slice, SlicedPass, add_slices, plan_slices, take_slice, taken_slices


@dataclass(frozen=True)
class SharedCheckpoint:
    """A checkpoint that several processes open by its path.

    Attributes:
        folder: its folder, which all nodes see.
        label: its name in messages.
        weights: digest of its weights.
    """

    folder: Path
    label: str
    weights: str

    @classmethod
    def of(cls, hashed: HashedCheckpoint) -> "SharedCheckpoint":
        """Return the description of a checkpoint."""
        return cls(hashed.checkpoint.folder.absolute(), hashed.checkpoint.label, hashed.weights)


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
        hashed: the checkpoint.
        calibration: the tokens.
        settings: settings of the pass, with the device of the tasks.
        cluster: the cluster.
        partial: a folder that all nodes see, for the slices; after an interruption, the same pass goes on from them.
        progress: receives the tokens counted.

    Raises:
        CalibrationError: an activation is NaN or infinite.
        CheckpointError: a node reads other weights in the checkpoint's folder.
        ClusterError: the nodes are of different kinds, or tasks lost their processes too often.
        StorageError: `partial` cannot be written.
    """
    checkpoint = hashed.checkpoint
    whole = SlicedPass.of(checkpoint, hashed.weights, calibration, settings)
    with ExitStack() as stack:
        if partial is None:
            folder = stack.enter_context(temporary_folder())
        else:
            folder = stack.enter_context(resumable_folder(partial.absolute(), whole.key, [hashed.weights]))
        shared = _Shared(SharedCheckpoint.of(hashed), whole, folder)
        taken = taken_slices(whole, folder)
        if taken:
            counted = sum(_tokens(calibration, part) for part in taken)
            remark(
                progress,
                f"resuming an interrupted pass: {counted:,} of {calibration.tokens:,} tokens are counted already",
            )
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
        listed = "; ".join(f"{node} is {kind}" for kind, node in nodes.items())
        raise ClusterError(
            f"the nodes are of different kinds, on which the bits of a pass may differ: {listed}",
            "use nodes of one kind, with the same libraries, then run it again",
        )
    return next(iter(nodes), None)


def take_in_task(shared: _Shared, part: Slice, *, progress: Progress) -> str:
    """Take one slice in a task, and return the name of its file."""
    checkpoint, model = _loaded(shared.checkpoint, shared.whole.settings, progress)
    kind = node_kind(str(shared.whole.settings.device))
    return take_slice(checkpoint, model, shared.whole, part, shared.folder, kind, progress).name


def _loaded(shared: SharedCheckpoint, settings: PassSettings, progress: Progress) -> tuple[Checkpoint, Any]:
    """Return a checkpoint and its model, which are opened and checked once in each process."""
    key = shared, settings.dtype, settings.device
    if key not in _opened:
        _opened.clear()
        checkpoint = open_shared(shared)
        _opened[key] = checkpoint, load_for_pass(shared.folder, settings.dtype, settings.device, progress=progress)
    return _opened[key]


def open_shared(shared: SharedCheckpoint) -> Checkpoint:
    """Open a checkpoint by its path, and check that its weights are those that the main process has read.

    Raises:
        CheckpointError: they are others, or there is no such folder.
    """
    checkpoint = Checkpoint(shared.folder, label=shared.label, remote_code=True)
    if hash_checkpoint(checkpoint, silent).weights != shared.weights:
        raise CheckpointError(
            f"{shared.folder} holds other weights on this node than where the command was started",
            "name a folder on a file system that all nodes share",
        )
    return checkpoint


def _tokens(calibration: Calibration, part: Slice) -> int:
    return int(calibration.lengths[part.first : part.stop].sum())
