"""The forward pass that takes statistics: exact at every site, and resumable at any batch."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry import statistics_file
from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, CheckpointError, StorageError
from registry.loading import device_name
from registry.maths.statistics import Statistics
from registry.pass_settings import PassSettings
from registry.progress import Progress, remark
from registry.scales import Scales, scales
from registry.scratch import resumable
from registry.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT, SITES
from registry.statistics_file import Collected
from store.digest import json_digest

SAVE_SECONDS = 60.0
"""How often a pass under way is written down, so that it can go on after an interruption."""

_FOLD_SEED = 0
_NO_TIMES: Tensor | None = None


@dataclass(frozen=True)
class Tap:
    """Where in a loaded model a site of a layer is seen: what a module is given, or (`after`) what it returns."""

    site: str
    layer: int
    module: Any
    after: bool = False


Taps = Callable[[Any], Sequence[Tap]]


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
    places = [tap for tap in (taps or dense_taps(checkpoint))(model) if tap.site in SITES[settings.sites]]
    collector = _Collector(checkpoint, weights, calibration, settings, computed, places, model.device, token_weights)
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


def dense_taps(checkpoint: Checkpoint) -> Taps:
    """Return where the sites are in the checkpoint's own dense model."""
    family, architecture = checkpoint.family, checkpoint.architecture

    def taps(model: Any) -> list[Tap]:
        attention = family.attention(architecture)
        found = [Tap(MLP_INPUT, layer, module) for layer, module in enumerate(family.mlps(model))]
        for layer in range(architecture.num_hidden_layers):
            for site, name in ((ATTENTION_INPUT, attention.inputs[0]), (ATTENTION_OUTPUT, attention.output)):
                found.append(Tap(site, layer, model.get_submodule(family.below(layer, name))))
        return [*found, Tap(HEAD_INPUT, 0, model.get_submodule(family.head_input(architecture).norm), after=True)]

    return taps


@dataclass(frozen=True)
class _Sums:
    """One site of one layer: the sum over all windows so far, those of all folds but the last, how many windows."""

    total: Statistics
    folds: tuple[Statistics, ...]
    done: int


class _Collector:
    """The running sums of one pass, fed by hooks.

    A layer's sums and the number of windows in them change together, so that an interruption at any moment, also in the
    middle of a batch, leaves sums that can be gone on from: layers ahead of others wait for them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: str,
        calibration: Calibration,
        settings: PassSettings,
        computed: dict[str, Any],
        taps: Sequence[Tap],
        device: torch.device,
        token_weights: Tensor | None,
    ) -> None:
        self._device = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        self._computed, self._taps = computed, taps
        self._scales: dict[str, Scales] = {site: scales(checkpoint, site) for site in SITES[settings.sites]}
        self._fold_of = fold_of_window(len(calibration.ids), settings.folds)
        self._sums = {
            (site, layer): self._zero(site, exponents)
            for site, of in self._scales.items()
            for layer, exponents in enumerate(of.exponents)
        }
        self._label, self._vocabulary = checkpoint.label, checkpoint.architecture.vocab_size
        self._weights, self._calibration = weights, calibration
        self._first, self._end, self._keep, self._folds = 0, 0, torch.empty(0), torch.empty(0)
        self._token_weights, self._times = token_weights, _NO_TIMES

    @property
    def done(self) -> int:
        """Windows that every layer has counted."""
        return min(sums.done for sums in self._sums.values())

    def next_batch(self, first: int, size: int, keep: Tensor) -> None:
        """Tell which windows the model will see next; `keep` of shape (size, S) is True where a token counts."""
        self._first, self._end, self._keep = first, first + size, keep.flatten().to(self._device)
        folds = torch.zeros(size, dtype=torch.int64)
        known = self._fold_of[first : first + size]
        folds[: len(known)] = known
        self._folds = folds[:, None].expand(keep.shape).flatten().to(self._device)
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

    def collected(self, *, under_way: bool = False) -> Collected:
        """Return the sums, on the CPU."""
        layers = {site: range(len(of.exponents)) for site, of in self._scales.items()}
        folded = {site: [self._sums[site, layer].folds for layer in numbers] for site, numbers in layers.items()}
        return Collected(
            self._weights,
            {site: tuple(_on_cpu(self._sums[site, layer].total) for layer in layers[site]) for site in layers},
            self._calibration.digest,
            self._calibration.label,
            self._computed,
            folds={site: tuple(tuple(map(_on_cpu, f)) for f in of) for site, of in folded.items() if any(of)},
            token_counts=None if under_way else self._calibration.counts(self._vocabulary),
            done={site: tuple(self._sums[site, layer].done for layer in layers[site]) for site in layers}
            if under_way
            else None,
        )

    def save(self, way: Path) -> None:
        """Write the pass under way to `way`, if its folder is still there: an opt-out deletes it."""
        try:
            statistics_file.save(way, self.collected(under_way=True))
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
        for site, layers in found.sites.items():
            for layer, total in enumerate(layers):
                folds = found.folds[site][layer] if site in found.folds else ()
                self._sums[site, layer] = _Sums(
                    self._placed(total), tuple(map(self._placed, folds)), found.done[site][layer]
                )

    def _zero(self, site: str, exponents: Tensor) -> _Sums:
        zero = Statistics.zero(exponents.to(self._device))
        folds = int(self._fold_of.max()) if site == MLP_INPUT else 0
        return _Sums(zero, (zero,) * folds, 0)

    def _placed(self, item: Statistics) -> Statistics:
        return Statistics(item.matrix.to(self._device), item.exponents.to(self._device), item.saturated)

    def _before(self, tap: Tap) -> Callable[[Any, tuple[Tensor, ...]], None]:
        return lambda _module, inputs: self._count(tap, inputs[0])

    def _after(self, tap: Tap) -> Callable[[Any, Any, Tensor], None]:
        return lambda _module, _inputs, output: self._count(tap, output)

    def _count(self, tap: Tap, activations: Tensor) -> None:
        sums = self._sums[tap.site, tap.layer]
        if sums.done > self._first:
            return  # counted before an interruption
        x = activations.reshape(-1, activations.shape[-1]).to(self._device)
        bits = self._scales[tap.site].bits
        count = len(sums.folds) + 1
        masks = [self._keep & (self._folds == fold) for fold in range(count)] if count > 1 else [self._keep]
        try:
            parts = [Statistics.of(x, sums.total.exponents, mask, bits, self._times) for mask in masks]
        except ValueError as error:
            raise CalibrationError(
                f"{self._label}: {error} (site {tap.site}, layer {tap.layer})",
                "register a checkpoint whose activations are finite, or compute with --dtype float32",
            ) from error
        total = sums.total
        for part in parts:
            total = total + part
        folds = tuple(fold + part for fold, part in zip(sums.folds, parts, strict=False))
        self._sums[tap.site, tap.layer] = _Sums(total, folds, self._end)


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


def _on_cpu(item: Statistics) -> Statistics:
    return Statistics(item.matrix.cpu(), item.exponents.cpu(), item.saturated)
