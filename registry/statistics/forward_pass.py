"""The forward pass that takes statistics: exact at every site, and resumable at any batch."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, CheckpointError, StorageError
from registry.families import NormOutput
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT, SITES
from registry.io.work_dirs import resumable
from registry.maths.limbs import Splitter
from registry.maths.statistics import Statistics
from registry.progress import Progress, remark
from registry.runtime.loading import device_name
from registry.statistics import file as statistics_file
from registry.statistics.accumulator import RunningSums
from registry.statistics.file import Collected
from registry.statistics.scales import Scales, scales
from registry.statistics.settings import PassSettings
from store.digest import json_digest

SAVE_SECONDS = 60.0
"""How often a pass under way is written down, so that it can go on after an interruption."""

_FOLD_SEED = 0
_NO_TIMES: Tensor | None = None


@dataclass(frozen=True)
class HookPoint:
    """Where in a loaded model a site of a layer is seen: what a module is given, or (`after`) what it returns."""

    site: str
    layer: int
    module: Any
    after: bool = False


Taps = Callable[[Any], Sequence[HookPoint]]


def take_statistics(
    checkpoint: Checkpoint,
    weights: str,
    model: Any,
    calibration: Calibration,
    settings: PassSettings,
    *,
    taps: Taps | None = None,
    token_weights: Tensor | None = None,
    partial: Path | None = None,
    progress: Progress,
) -> Collected:
    """Return the statistics of `calibration` in a model's forward pass.

    Batches hold consecutive windows; the last is filled up with windows that do not count, so that all have one shape.
    No attention mask is needed: padding stands to the right, where nothing that counts can see it.

    Args:
        checkpoint: where the bounds come from.
        weights: digest of the weights, written into the result.
        model: the loaded model.
        calibration: the tokens.
        settings: sites, folds, batch size, device and dtype.
        taps: where the sites are in `model`, if it is not the checkpoint's own dense one.
        token_weights: how often each token counts, int64 of shape (N, S), from 0 to 255; None for once.
        partial: a folder to keep the pass under way in; the same pass, started again, goes on from there.
        progress: told of the tokens counted.

    Raises:
        CalibrationError: an activation is NaN or infinite.
        StorageError: `partial` cannot be written.
    """
    computed = computed_by(checkpoint, settings)
    places = [tap for tap in (taps or dense_hook_points(checkpoint))(model) if tap.site in SITES[settings.sites]]
    same = _same_inputs(checkpoint) if taps is None and settings.sites == "all" else {}
    collector = _Collector(
        checkpoint, weights, calibration, settings, computed, places, same, model.device, token_weights
    )
    key = json_digest([weights, calibration.digest, computed])
    with resumable(partial, key, [weights]) as way:
        if way is not None:
            collector.resume(way)
        if collector.done:
            counted = int(calibration.lengths[: collector.done].sum())
            remark(
                progress,
                f"an interrupted pass goes on: {counted:,} of {calibration.tokens:,} tokens were counted before",
            )
        saved = time.monotonic()
        try:
            with (
                torch.no_grad(),
                collector.attached(),
                progress("collecting", calibration.tokens, "token") as advance,
            ):
                advance(int(calibration.lengths[: collector.done].sum()))
                for first in range(collector.done, len(calibration.ids), settings.batch_size):
                    ids, keep = batch(calibration, first, settings.batch_size)
                    collector.next_batch(first, settings.batch_size, keep)
                    model.base_model(input_ids=ids.to(model.device), use_cache=False)
                    advance(int(keep.sum()))
                    if way is not None and time.monotonic() - saved >= SAVE_SECONDS:
                        collector.save(way)
                        saved = time.monotonic()
        except KeyboardInterrupt:
            if way is not None:
                collector.save(way)
            raise
    return collector.collected()


def dense_hook_points(checkpoint: Checkpoint) -> Taps:
    """Return where the sites are in the checkpoint's own dense model."""
    family, architecture = checkpoint.family, checkpoint.architecture

    def taps(model: Any) -> list[HookPoint]:
        attention = family.attention(architecture)
        found = [HookPoint(MLP_INPUT, layer, module) for layer, module in enumerate(family.mlps(model))]
        for layer in range(architecture.num_hidden_layers):
            for site, name in ((ATTENTION_INPUT, attention.inputs[0]), (ATTENTION_OUTPUT, attention.output)):
                found.append(HookPoint(site, layer, model.get_submodule(family.tensor_name(layer, name))))
        return [*found, HookPoint(HEAD_INPUT, 0, model.get_submodule(family.head_input(architecture).norm), after=True)]

    return taps


class _Collector:
    """The running sums of one pass, fed by hooks.

    Each layer has its own number of windows, so that an interruption in the middle of a batch leaves sums that can be
    gone on from: layers ahead of others wait for them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: str,
        calibration: Calibration,
        settings: PassSettings,
        computed: dict[str, Any],
        taps: Sequence[HookPoint],
        same: Mapping[str, str],
        device: torch.device,
        token_weights: Tensor | None,
    ) -> None:
        self._device = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        self._computed, self._same = computed, same
        self._taps = [tap for tap in taps if tap.site not in same]
        self._scales: dict[str, Scales] = {site: scales(checkpoint, site) for site in SITES[settings.sites]}
        self._fold_of = fold_of_window(len(calibration.ids), settings.folds)
        splitter = Splitter()
        self._sums = {
            (site, layer): RunningSums(exponents.to(self._device), of.bits, self._fold_count(site), splitter)
            for site, of in self._scales.items()
            if site not in same
            for layer, exponents in enumerate(of.exponents)
        }
        self._label, self._vocabulary = checkpoint.label, checkpoint.architecture.vocab_size
        self._weights, self._calibration = weights, calibration
        self._first, self._end = 0, 0
        self._runs: tuple[tuple[slice, ...], ...] = ()
        self._whole: tuple[tuple[slice, ...], ...] = ()
        self._token_weights, self._times = token_weights, _NO_TIMES

    @property
    def done(self) -> int:
        """Windows that every layer has counted."""
        return min(sums.done for sums in self._sums.values())

    def next_batch(self, first: int, size: int, keep: Tensor) -> None:
        """Tell which windows the model will see next; `keep` of shape (size, S) is True where a token counts."""
        self._first, self._end = first, first + size
        lengths, length = keep.sum(dim=1).tolist(), keep.shape[1]
        rows = [slice(number * length, number * length + n) for number, n in enumerate(lengths)]
        folds = self._fold_of[first : first + size].tolist()
        counting = list(zip(rows, folds, strict=False))
        self._runs = tuple(
            _joined(run for run, of in counting if of == fold) for fold in range(self._fold_count(MLP_INPUT))
        )
        self._whole = (_joined(run for run, _ in counting),)
        if self._token_weights is not None:
            times = torch.zeros(keep.shape, dtype=torch.int64)
            given = self._token_weights[first : first + size]
            times[: len(given)] = given
            self._times = times.flatten().to(self._device)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hook the modules, and let go of them afterwards."""
        handles = [
            tap.module.register_forward_hook(self._after(tap))
            if tap.after
            else tap.module.register_forward_pre_hook(self._before(tap))
            for tap in self._taps
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def collected(self) -> Collected:
        """Return the sums, on the CPU, and let go of them."""
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
            self._computed,
            folds={site: of for site, of in folded.items() if any(of)},
            token_counts=self._calibration.counts(self._vocabulary),
        )

    def save(self, way: Path) -> None:
        """Write the pass under way to `way`; where an addition broke off, what was written before stands.

        Where its folder is gone, nothing is written: an opt-out deleted it.
        """
        if any(sums.broken for sums in self._sums.values()):
            return
        done: dict[str, tuple[int, ...]] = {}
        for (site, _), sums in self._sums.items():
            done[site] = (*done.get(site, ()), sums.done)
        header = Collected(
            self._weights, {}, self._calibration.digest, self._calibration.label, self._computed, done=done
        )
        parts = ((site, layer, *sums.statistics()) for (site, layer), sums in self._sums.items())
        try:
            statistics_file.save(way, header, parts)
        except StorageError:
            if way.parent.is_dir():
                raise

    def resume(self, way: Path) -> None:
        """Go on from `way`, if an intact pass under way is there."""
        if not way.is_file():
            return
        try:
            found = statistics_file.load(way)
        except CheckpointError:
            return  # damaged: the pass begins anew
        if found.done is None or found.calibration_digest != self._calibration.digest:
            return
        places = {(site, layer) for site, layers in found.sites.items() for layer in range(len(layers))}
        if places != set(self._sums):
            return
        for (site, layer), sums in self._sums.items():
            folds = found.folds[site][layer] if site in found.folds else ()
            sums.restore(found.sites[site][layer], folds, found.done[site][layer])

    def _finished(self, site: str) -> Iterator[tuple[Statistics, tuple[Statistics, ...]]]:
        for layer in range(len(self._scales[site].exponents)):
            yield self._sums.pop((site, layer)).statistics()

    def _fold_count(self, site: str) -> int:
        return int(self._fold_of.max()) + 1 if site == MLP_INPUT else 1

    def _before(self, tap: HookPoint) -> Callable[[Any, tuple[Tensor, ...]], None]:
        return lambda _module, inputs: self._count(tap, inputs[0])

    def _after(self, tap: HookPoint) -> Callable[[Any, Any, Tensor], None]:
        return lambda _module, _inputs, output: self._count(tap, output)

    def _count(self, tap: HookPoint, activations: Tensor) -> None:
        sums = self._sums[tap.site, tap.layer]
        if sums.done > self._first:
            return  # counted before an interruption
        x = activations.reshape(-1, activations.shape[-1]).to(self._device)
        try:
            sums.add(x, self._runs if tap.site == MLP_INPUT else self._whole, self._end, self._times)
        except ValueError as error:
            raise CalibrationError(
                f"{self._label}: {error} (site {tap.site}, layer {tap.layer})",
                "register a checkpoint whose activations are finite, or compute with --dtype float32",
            ) from error


def _joined(runs: Iterable[slice]) -> tuple[slice, ...]:
    """Return runs of rows without empty ones, neighbours as one."""
    joined: list[slice] = []
    for run in runs:
        if joined and joined[-1].stop == run.start and run.stop > run.start:
            joined[-1] = slice(joined[-1].start, run.stop)
        elif run.stop > run.start:
            joined.append(run)
    return tuple(joined)


def _same_inputs(checkpoint: Checkpoint) -> dict[str, str]:
    """Return site → the site of the same layer that sees the very same activations, so that one sum is enough."""
    family, architecture = checkpoint.family, checkpoint.architecture
    seen = family.attention_input(architecture)
    if isinstance(seen, NormOutput) and seen == family.mlp_input(architecture):
        return {ATTENTION_INPUT: MLP_INPUT}
    return {}


def fold_of_window(windows: int, folds: int) -> Tensor:
    """Return the fold of each window, int64 of shape (windows,): as many of each as can be, in a seeded order."""
    order = torch.randperm(windows, generator=torch.Generator().manual_seed(_FOLD_SEED))
    return order % min(folds, windows)


def batch(calibration: Calibration, first: int, size: int) -> tuple[Tensor, Tensor]:
    """Return (ids, keep) of shape (size, S) from window `first` on; windows beyond the last do not count."""
    ids = calibration.ids[first : first + size].long()
    keep = calibration.keep[first : first + size]
    if (short := size - len(ids)) > 0:
        ids = torch.cat([ids, ids[:1].expand(short, -1)])
        keep = torch.cat([keep, torch.zeros((short, keep.shape[1]), dtype=torch.bool)])
    return ids, keep


def computed_by(checkpoint: Checkpoint, settings: PassSettings) -> dict[str, Any]:
    """Return how a pass with these settings runs, as far as its result depends on that."""
    return {
        "dtype": settings.dtype or checkpoint.dtype,
        "batch_size": settings.batch_size,
        "device": device_name(settings.device).partition(":")[0],
        "sites": settings.sites,
        "folds": settings.folds,
    }


def window_size(checkpoint: Checkpoint, settings: PassSettings) -> int:
    """Return the tokens in a window: what was asked for, or what the model can take."""
    return min(settings.seq_len, checkpoint.architecture.max_position_embeddings)
