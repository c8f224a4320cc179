"""The forward pass that collects statistics: exact at every site, and resumable at any batch.

Shapes: N windows of a calibration, S tokens of a window, B windows of a batch, T = B · S tokens of a batch, row by row;
H channels of a site (the hidden size, or heads times their size), V the vocabulary, L layers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, CheckpointError, StorageError
from registry.families import NormOutput
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, COUNTS, HEAD_INPUT, MLP_INPUT, SITES
from registry.io.work_dirs import resumable
from registry.maths.limbs import Splitter
from registry.maths.statistics import Statistics
from registry.progress import Progress, remark
from registry.runtime.compute_dtype import compute_dtype
from registry.runtime.loading import device_name
from registry.statistics import file as statistics_file
from registry.statistics.accumulator import RunningSums
from registry.statistics.file import Collected
from registry.statistics.scales import Scales, scales
from registry.statistics.settings import PassSettings
from store.digest import json_digest

SAVE_SECONDS = 60.0
"""Seconds between two saves of a running pass, so that it can resume after an interruption."""

_FOLD_SEED = 0


@dataclass(frozen=True)
class HookPoint:
    """The module of a loaded model at which a layer's site is read: its input, or (`after`) its output."""

    site: str
    layer: int
    module: Any
    after: bool = False


HookPoints = Callable[[Any], Sequence[HookPoint]]
"""Returns the hook points of a loaded model."""


@dataclass(frozen=True)
class ModelRun:
    """A loaded model, and how it is observed.

    Attributes:
        model: the loaded model.
        hook_points: finds the sites in `model`; None for a checkpoint's own dense model.
        token_weights: how often each token counts, from 0 to 255; None for once.
    """

    model: Any
    hook_points: HookPoints | None = None
    token_weights: Int64[Tensor, "N S"] | None = None


def take_statistics(
    checkpoint: Checkpoint,
    weights: str,
    run: ModelRun,
    calibration: Calibration,
    settings: PassSettings,
    *,
    windows: range | None = None,
    partial: Path | None = None,
    progress: Progress,
) -> Collected:
    """Return the statistics of `calibration` in a model's forward pass.

    Batches hold consecutive windows; the last is filled up with windows that do not count, so that all have one shape.
    No attention mask is needed: padding is on the right, where the tokens that count cannot see it.

    Args:
        checkpoint: the checkpoint that the bounds are computed from.
        weights: digest of the weights, written into the result.
        run: the model, its hook points and the weights of tokens.
        calibration: the tokens.
        settings: sites, folds, batch size, device and dtype.
        windows: whole batches of consecutive windows to count; None for all. Such parts add up to the whole, bit for
            bit: folds and batches are numbered over all windows. Token counts are those of the whole.
        partial: a folder for the state of a running pass; the same pass, started again, resumes from it.
        progress: receives the tokens counted.

    Raises:
        CalibrationError: an activation is NaN or infinite.
        StorageError: `partial` cannot be written.
    """
    collector = _Collector(checkpoint, weights, run, calibration, settings)
    key = json_digest([weights, calibration.digest, collector.computed])
    with resumable(partial, key, [weights]) as state_path:
        if state_path is not None:
            collector.resume(state_path)
        windows = range(len(calibration.ids)) if windows is None else windows
        start = max(collector.completed_windows, windows.start)
        total = int(calibration.lengths[windows.start : windows.stop].sum())
        counted = int(calibration.lengths[windows.start : start].sum())
        if counted:
            remark(
                progress,
                f"resuming an interrupted pass: {counted:,} of {calibration.tokens:,} tokens are counted already",
            )
        saved = time.monotonic()
        try:
            with (
                torch.no_grad(),
                collector.attached(),
                progress("collecting", total, "token") as advance,
            ):
                advance(counted)
                for first in range(start, windows.stop, settings.batch_size):
                    ids, keep = batch(calibration, first, settings.batch_size)  # both (B, S)
                    collector.next_batch(first, keep)
                    # The base model stops before the head: no logits (B, S, V) are computed.
                    run.model.base_model(input_ids=ids.to(run.model.device), use_cache=False)
                    advance(int(keep.sum()))
                    if state_path is not None and time.monotonic() - saved >= SAVE_SECONDS:
                        collector.save(state_path)
                        saved = time.monotonic()
        except KeyboardInterrupt:
            if state_path is not None:
                collector.save(state_path)
            raise
    return collector.collected()


def dense_hook_points(checkpoint: Checkpoint) -> HookPoints:
    """Return the function that finds the sites in the checkpoint's own dense model."""
    family, architecture = checkpoint.family, checkpoint.architecture

    def hook_points(model: Any) -> list[HookPoint]:
        attention = family.attention(architecture)
        points = [HookPoint(MLP_INPUT, layer, module) for layer, module in enumerate(family.mlps(model))]
        for layer in range(architecture.num_hidden_layers):
            for site, name in ((ATTENTION_INPUT, attention.inputs[0]), (ATTENTION_OUTPUT, attention.output)):
                points.append(HookPoint(site, layer, model.get_submodule(family.tensor_name(layer, name))))
        head_norm = model.get_submodule(family.head_input(architecture).norm)
        return [*points, HookPoint(HEAD_INPUT, 0, head_norm, after=True)]

    return hook_points


class _Collector:
    """The running sums of one pass, filled by hooks.

    Each layer counts its own windows. After an interruption in the middle of a batch, layers that are ahead skip the
    windows that they have counted.

    Attributes:
        computed: how the pass runs, as far as its result depends on that.
    """

    def __init__(
        self, checkpoint: Checkpoint, weights: str, run: ModelRun, calibration: Calibration, settings: PassSettings
    ) -> None:
        self.computed = computed_by(checkpoint, settings)
        device: torch.device = run.model.device
        self._device = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
        # Routed models may see other activations at a site, so only a dense model's sites share sums.
        shared = run.hook_points is None and settings.sites == "all"
        self._same = same_inputs(checkpoint) if shared else {}
        points = (run.hook_points or dense_hook_points(checkpoint))(run.model)
        self._points = [
            point for point in points if point.site in SITES[settings.sites] and point.site not in self._same
        ]
        self._scales: dict[str, Scales] = {site: scales(checkpoint, site) for site in SITES[settings.sites]}
        self._fold_of = fold_of_window(len(calibration.ids), settings.folds)
        splitter = Splitter()
        self._sums = {
            (site, layer): RunningSums(exponents.to(self._device), scale.bits, self._fold_count(site), splitter)
            for site, scale in self._scales.items()
            if site not in self._same
            for layer, exponents in enumerate(scale.exponents)
        }
        self._label, self._vocabulary = checkpoint.label, checkpoint.architecture.vocab_size
        self._weights, self._calibration = weights, calibration
        # The current batch: its first window and the one after its last; the rows that count, by fold and in all.
        self._first, self._end = 0, 0
        self._fold_runs: tuple[tuple[slice, ...], ...] = ()
        self._all_runs: tuple[tuple[slice, ...], ...] = ()
        self._token_weights = run.token_weights
        self._row_weights: Tensor | None = None

    @property
    def completed_windows(self) -> int:
        """Windows that every layer has counted."""
        return min(sums.completed_windows for sums in self._sums.values())

    def next_batch(self, first: int, keep: Bool[Tensor, "B S"]) -> None:
        """Set the windows that the model sees next.

        Args:
            first: number of the batch's first window.
            keep: True where a token counts.
        """
        size, seq_len = keep.shape
        self._first, self._end = first, first + size
        # Padding stands to the right, so that the rows of a window that count, of (T, H), are one run.
        lengths = keep.sum(dim=1).tolist()
        rows = [slice(number * seq_len, number * seq_len + length) for number, length in enumerate(lengths)]
        folds = self._fold_of[first : first + size].tolist()
        counting = list(zip(rows, folds, strict=False))  # the windows that fill up the last batch have no fold
        self._fold_runs = tuple(
            _joined(run for run, fold_of_run in counting if fold_of_run == fold)
            for fold in range(self._fold_count(MLP_INPUT))
        )
        self._all_runs = (_joined(run for run, _ in counting),)
        if self._token_weights is not None:
            row_weights = torch.zeros(keep.shape, dtype=torch.int64)
            window_weights = self._token_weights[first : first + size]
            row_weights[: len(window_weights)] = window_weights
            self._row_weights = row_weights.flatten().to(self._device)  # (B, S) → (T,), as the activations

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hook the modules while the context is open."""
        handles = [
            point.module.register_forward_hook(self._after(point))
            if point.after
            else point.module.register_forward_pre_hook(self._before(point))
            for point in self._points
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def collected(self) -> Collected:
        """Return the sums, on the CPU, and release them."""
        sites: dict[str, tuple[Statistics, ...]] = {}
        folded: dict[str, tuple[tuple[Statistics, ...], ...]] = {}
        for site in self._scales:
            if site not in self._same:
                sites[site], folded[site] = zip(*self._finished(site), strict=True)
        return Collected(
            self._weights,
            {site: sites[self._same.get(site, site)] for site in self._scales},
            self._calibration.digest,
            self._calibration.label,
            self.computed,
            folds={site: layers for site, layers in folded.items() if any(layers)},
            token_counts=self._calibration.counts(self._vocabulary),
        )

    def save(self, state_path: Path) -> None:
        """Write the state of the pass, unless an interrupted addition left broken sums: the last file stays then.

        If the folder is gone, an opt-out deleted it, and nothing is written.
        """
        if any(sums.broken for sums in self._sums.values()):
            return
        completed: dict[str, tuple[int, ...]] = {}
        for (site, _), sums in self._sums.items():
            completed[site] = (*completed.get(site, ()), sums.completed_windows)
        header = Collected(
            self._weights, {}, self._calibration.digest, self._calibration.label, self.computed, done=completed
        )
        parts = ((site, layer, *sums.statistics()) for (site, layer), sums in self._sums.items())
        try:
            statistics_file.save(state_path, header, parts)
        except StorageError:
            if state_path.parent.is_dir():
                raise

    def resume(self, state_path: Path) -> None:
        """Restore the sums from `state_path`, if it holds an intact state of this pass."""
        if not state_path.is_file():
            return
        try:
            state = statistics_file.load(state_path)
        except CheckpointError:
            return  # damaged: the pass starts from the first window
        if state.done is None or state.calibration_digest != self._calibration.digest:
            return
        if {(site, layer) for site, layers in state.sites.items() for layer in range(len(layers))} != set(self._sums):
            return
        for (site, layer), sums in self._sums.items():
            folds = state.folds[site][layer] if site in state.folds else ()
            sums.restore(state.sites[site][layer], folds, state.done[site][layer])

    def _finished(self, site: str) -> Iterator[tuple[Statistics, tuple[Statistics, ...]]]:
        for layer in range(len(self._scales[site].exponents)):
            yield self._sums.pop((site, layer)).statistics()

    def _fold_count(self, site: str) -> int:
        return int(self._fold_of.max()) + 1 if site == MLP_INPUT else 1

    def _before(self, point: HookPoint) -> Callable[[Any, tuple[Tensor, ...]], None]:
        return lambda _module, inputs: self._count(point, inputs[0])

    def _after(self, point: HookPoint) -> Callable[[Any, Any, Tensor], None]:
        return lambda _module, _inputs, output: self._count(point, output)

    def _count(self, point: HookPoint, activations: Float[Tensor, "*B H"]) -> None:
        sums = self._sums[point.site, point.layer]
        if sums.completed_windows > self._first:
            return  # counted before an interruption
        x = activations.reshape(-1, activations.shape[-1]).to(self._device)  # (B, S, H), of a gate (T, H) → (T, H)
        runs = self._fold_runs if point.site == MLP_INPUT else self._all_runs  # only MLP inputs have folds
        try:
            sums.add(x, runs, self._end, self._row_weights)
        except ValueError as error:
            raise CalibrationError(
                f"{self._label}: {error} (site {point.site}, layer {point.layer})",
                "register a checkpoint whose activations are finite, or compute with --dtype float32",
            ) from error


def _joined(runs: Iterable[slice]) -> tuple[slice, ...]:
    """Return runs of rows without the empty ones, adjacent runs joined."""
    joined: list[slice] = []
    for run in runs:
        if joined and joined[-1].stop == run.start and run.stop > run.start:
            joined[-1] = slice(joined[-1].start, run.stop)
        elif run.stop > run.start:
            joined.append(run)
    return tuple(joined)


def same_inputs(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the sites whose activations equal those of another site of the same layer: site → that site."""
    family, architecture = checkpoint.family, checkpoint.architecture
    attention_input = family.attention_input(architecture)
    if isinstance(attention_input, NormOutput) and attention_input == family.mlp_input(architecture):
        return {ATTENTION_INPUT: MLP_INPUT}
    return {}


def fold_of_window(windows: int, folds: int) -> Int64[Tensor, "N"]:
    """Return the fold of each window: folds of equal size, up to one window, in a seeded order."""
    order = torch.randperm(windows, generator=torch.Generator().manual_seed(_FOLD_SEED))
    return order % min(folds, windows)


def batch(calibration: Calibration, first: int, size: int) -> tuple[Int64[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Return the token ids of B = `size` windows from `first` on, and which tokens count.

    After the last window, the first of the batch is repeated; its copies do not count.
    """
    ids = calibration.ids[first : first + size].long()
    keep = calibration.keep[first : first + size]
    if (short := size - len(ids)) > 0:
        ids = torch.cat([ids, ids[:1].expand(short, -1)])  # (B - short, S) → (B, S)
        keep = torch.cat([keep, torch.zeros((short, keep.shape[1]), dtype=torch.bool)])
    return ids, keep


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
        "device": device_name(settings.device).partition(":")[0],
        "sites": settings.sites,
        "folds": settings.folds,
    }


def window_size(checkpoint: Checkpoint, settings: PassSettings) -> int:
    """Return the tokens in a window: the requested length, at most the longest sequence of the model."""
    wanted = settings.seq_len if settings.document_tokens is None else settings.document_tokens
    return min(wanted, checkpoint.architecture.max_position_embeddings)
