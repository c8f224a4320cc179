"""The forward pass that collects statistics: exact at every site, and resumable at any batch.

Shapes: N windows of a calibration, S tokens of a window, B windows of a batch, V the vocabulary.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CheckpointError, StorageError
from registry.families.sites import COUNTS
from registry.io.work_dirs import resumable
from registry.maths.statistics import Statistics
from registry.progress import Progress, remark
from registry.runtime.loading import device_kind
from registry.runtime.upcast import compute_dtype
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import Batches, Counting, HookPoint, SiteSums, dense_hook_points
from store.digest import json_digest

SAVE_SECONDS = 60.0  # seconds between two saves of a running pass, so that it can resume after an interruption


def take_statistics(
    checkpoint: Checkpoint,
    weights: str,
    model: Any,
    calibration: Calibration,
    settings: PassSettings,
    *,
    points: Sequence[HookPoint] | None = None,
    partial: Path | None = None,
    progress: Progress,
) -> Collected:
    """Return the statistics of `calibration` in a model's forward pass.

    Batches hold consecutive windows; the last is filled up with windows that do not count, so that all have one shape.
    No attention mask is needed: padding is on the right, where the tokens that count cannot see it.

    Args:
        points: where the sites are in the model; None for a checkpoint's own dense model.
        partial: a folder for the state of a running pass; the same pass, started again, resumes from it.

    Raises:
        CalibrationError: an activation is NaN or infinite.
        StorageError: `partial` cannot be written.
    """
    counting = Counting.of(checkpoint, settings.sites, model.device, dense=points is None)
    sums = SiteSums(counting, counting.site_layers)
    points = dense_hook_points(checkpoint, model) if points is None else points
    header = Collected(weights, {}, calibration.digest, calibration.label, computed_by(checkpoint, settings))
    with resumable(partial, json_digest([weights, calibration.digest, header.computed]), [weights]) as state_path:
        _resume(state_path, header, sums)
        start = sums.completed_windows
        counted = int(calibration.lengths[:start].sum())
        report_resumed(counted, calibration, progress)
        saved = time.monotonic()
        try:
            with torch.no_grad(), sums.attached(points), progress("collecting", calibration.tokens, "token") as advance:
                advance(counted)
                for first, ids, keep in Batches(calibration, settings.batch_size).after(start):
                    sums.next_batch(first, keep)
                    # The base model stops before the head: no logits (B, S, V) are computed.
                    model.base_model(input_ids=ids.to(model.device), use_cache=False)
                    advance(int(keep.sum()))
                    if time.monotonic() - saved >= SAVE_SECONDS:
                        _save(state_path, header, sums)
                        saved = time.monotonic()
        except KeyboardInterrupt:
            _save(state_path, header, sums)
            raise
    found: dict[str, list[Statistics]] = {}
    for site, layer in counting.site_layers:
        found.setdefault(site, []).append(sums.pop((site, layer)))
    sites = {site: tuple(found[counting.same.get(site, site)]) for site in counting.scales}
    return replace(header, sites=sites)


def _save(state_path: Path | None, header: Collected, every: SiteSums) -> None:
    """Write the state of a pass, unless an interrupted addition left broken sums: the last file stays then.

    If the folder is gone, an opt-out deleted it, and nothing is written.
    """
    if state_path is None or every.broken:
        return
    completed: dict[str, tuple[int, ...]] = {}
    for (site, _), sums in every.sums.items():
        completed[site] = (*completed.get(site, ()), sums.completed_windows)
    parts = ((site, layer, sums.statistics()) for (site, layer), sums in every.sums.items())
    try:
        statistics_file.save(state_path, replace(header, done=completed), parts)
    except StorageError:
        if state_path.parent.is_dir():
            raise


def _resume(state_path: Path | None, header: Collected, every: SiteSums) -> None:
    """Restore the sums from `state_path`, if it holds an intact state of this pass."""
    if state_path is None or not state_path.is_file():
        return
    try:
        state = statistics_file.load(state_path)
    except CheckpointError:
        return  # damaged: the pass starts from the first window
    if state.done is None or state.calibration_digest != header.calibration_digest:
        return
    if {(site, layer) for site, layers in state.sites.items() for layer in range(len(layers))} != set(every.sums):
        return
    for (site, layer), sums in every.sums.items():
        sums.restore(state.sites[site][layer], state.done[site][layer])


def report_resumed(counted: int, calibration: Calibration, progress: Progress) -> None:
    """Report how many tokens of a pass were counted before an interruption, if any were."""
    if counted:
        remark(
            progress, f"resuming an interrupted pass: {counted:,} of {calibration.tokens:,} tokens are counted already"
        )


def computed_by(checkpoint: Checkpoint, settings: PassSettings, *, self_sampled: bool = False) -> dict[str, Any]:
    """Return the settings that statistics depend on, as a document.

    Counts of tokens depend on no setting of a model, unless it sampled the tokens itself (`self_sampled`).
    """
    if settings.sites == COUNTS:
        model = computed_by(checkpoint, replace(settings, sites="all")) if self_sampled else {}
        return {key: value for key, value in model.items() if key != "folds"} | {"sites": COUNTS}
    return {
        "dtype": compute_dtype(settings.dtype, checkpoint.dtype, settings.device),
        "batch_size": settings.batch_size,
        "device": device_kind(settings.device),
        "sites": settings.sites,
        "folds": 1,  # as versions of earlier releases have it whose sums are not in parts
    }


def window_size(checkpoint: Checkpoint, settings: PassSettings) -> int:
    """Return the tokens in a window: the requested length, at most the longest sequence of the model."""
    wanted = settings.seq_len if settings.document_tokens is None else settings.document_tokens
    return min(wanted, checkpoint.architecture.max_position_embeddings)
