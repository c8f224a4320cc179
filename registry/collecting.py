"""Taking an expert's statistics: one forward pass over its calibration tokens, exact, and resumable at any batch."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry import statistics_file
from registry.calibration import (
    Calibration,
    Corpus,
    random_places,
    sample_from_expert,
)
from registry.calibration.documents import find_calibration
from registry.calibration.windows import start_token
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.errors import CalibrationError, CheckpointError, StorageError
from registry.loading import device_name, load_model, load_tokenizer
from registry.maths.statistics import Statistics
from registry.opening import opened
from registry.pass_settings import PassSettings
from registry.progress import Progress, remark, silent
from registry.scales import Scales, mlp_input_scales
from registry.sites import MLP_INPUT
from registry.statistics_file import Collected
from store.digest import json_digest

SEED = 0
SAVE_SECONDS = 60.0
"""How often a pass under way is written down, so that it can go on after an interruption."""


def text_calibration(checkpoint: Checkpoint, data: Sequence[Path], settings: PassSettings) -> Calibration | None:
    """Return the calibration tokens of `data`, sampled over the whole of it (`windows.random_places`).

    Without `data` the checkpoint's own `calibration.*` file is taken; where there is none either, None is returned.

    Raises:
        CalibrationError: there is no text; `data` cannot be read; it has tokens that the model does not know.
        CheckpointError: there is no tokenizer.
    """
    if not data:
        own = find_calibration(checkpoint.folder)
        if own is None:
            return None
        data = (own,)
    tokenizer = load_tokenizer(checkpoint.folder)
    seq_len = window_size(checkpoint, settings)
    calibration = random_places(Corpus(data, tokenizer), tokenizer, tokens=settings.tokens, seq_len=seq_len, seed=SEED)
    if (largest := int(calibration.ids.max())) >= checkpoint.architecture.vocab_size:
        raise CalibrationError(
            f"{checkpoint.label}: its tokenizer gives token {largest}, the model knows "
            f"{checkpoint.architecture.vocab_size}",
            "put the tokenizer that the model was trained with into the folder",
        )
    return calibration


def carried_statistics(hashed: HashedCheckpoint) -> Collected | None:
    """Return the statistics that a checkpoint carries in its folder, checked, or None where it carries none.

    Raises:
        CheckpointError: they are of other weights, or their layers, scales, counts or tokens cannot be this model's.
    """
    checkpoint, weights = hashed.checkpoint, hashed.weights
    where = checkpoint.folder / statistics_file.FILE_NAME
    if not where.is_file():
        return None
    collected = statistics_file.load(where)
    redo = "make them again: reg collect CKPT --data FILE --out DIR"
    if collected.weights != weights:
        raise CheckpointError(
            f"{where} has statistics of weights {collected.weights[:12]}, the checkpoint has {weights[:12]}",
            redo,
        )
    kept = collected.calibration
    if kept is not None and not 0 <= int(kept.ids.min()) <= int(kept.ids.max()) < checkpoint.architecture.vocab_size:
        raise CheckpointError(f"{where} has calibration tokens that the model does not know", redo)
    layers, expected = collected.sites.get(MLP_INPUT, ()), mlp_input_scales(checkpoint).exponents
    if len(layers) != len(expected):
        raise CheckpointError(
            f"{where} has {len(layers)} layers of {MLP_INPUT}, the checkpoint has {len(expected)}", redo
        )
    for number, (layer, exponents) in enumerate(zip(layers, expected, strict=True)):
        if not torch.equal(layer.exponents, exponents):
            raise CheckpointError(f"{where}: the scales of layer {number} are not those that the weights give", redo)
        if layer.count < 1 or layer.count != layers[0].count or bool((layer.matrix.diagonal() < 0).any()):
            raise CheckpointError(f"{where}: layer {number} holds no sum over {layers[0].count} tokens", redo)
    return collected


def collect(
    hashed: HashedCheckpoint,
    calibration: Calibration | None,
    settings: PassSettings,
    *,
    keep_calibration: bool = False,
    partial: Path | None = None,
    progress: Progress,
) -> Collected:
    """Load the expert and return its statistics on `calibration`, or on text it writes itself where that is None.

    Args:
        hashed: the checkpoint.
        calibration: what `text_calibration` returned.
        settings: how the pass runs.
        keep_calibration: put the tokens into the result.
        partial: as in `take_statistics`.
        progress: told of tokens sampled and counted.

    Raises:
        CalibrationError: the expert cannot write text, or an activation is NaN or infinite.
        CheckpointError: the model cannot be loaded.
    """
    checkpoint = hashed.checkpoint
    model = load_model(checkpoint.folder, settings.dtype or checkpoint.dtype, settings.device)
    if calibration is None:
        calibration = _sampled_calibration(checkpoint, model, settings, progress)
    collected = take_statistics(
        checkpoint, hashed.weights, model, calibration, settings, partial=partial, progress=progress
    )
    return replace(collected, calibration=calibration) if keep_calibration else collected


def collect_to(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    data: Sequence[str | os.PathLike[str]] = (),
    settings: PassSettings | None = None,
    keep_calibration: bool = False,
    base: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> tuple[Path, Collected]:
    """Take the statistics of a checkpoint where its data is, and write them to `out`/statistics.safetensors.

    No registry takes part. The checkpoint with that file in its folder registers anywhere without data and without a
    forward pass. An interrupted pass goes on when it is started again with the same `out`.

    Raises:
        CheckpointError, UnsupportedFamilyError: the checkpoint cannot be registered.
        CalibrationError: there is no text, or an activation is NaN or infinite.
        StorageError: `out` cannot be written.
    """
    settings = settings or PassSettings()
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{target} cannot be created: {error.strerror}", "choose another --out") from error
    with opened(folder, target / "partial", base=base, remote_code=True, progress=progress) as checkpoint:
        hashed = hash_checkpoint(checkpoint, progress)
        calibration = text_calibration(checkpoint, [Path(file) for file in data], settings)
        collected = collect(
            hashed,
            calibration,
            settings,
            keep_calibration=keep_calibration,
            partial=target / "partial",
            progress=progress,
        )
    path = target / statistics_file.FILE_NAME
    statistics_file.save(path, collected)
    shutil.rmtree(target / "partial", ignore_errors=True)
    return path, collected


def _sampled_calibration(checkpoint: Checkpoint, model: Any, settings: PassSettings, progress: Progress) -> Calibration:
    ends = checkpoint.special_tokens["eos_token_id"]
    end = [ends] if isinstance(ends, int) else list(ends or [])
    start = checkpoint.special_tokens["bos_token_id"]
    if start is None and (checkpoint.folder / "tokenizer_config.json").is_file():
        start = start_token(load_tokenizer(checkpoint.folder))
    return sample_from_expert(
        model,
        start=start if start is not None else next(iter(end), None),
        end=end,
        tokens=settings.tokens,
        seq_len=window_size(checkpoint, settings),
        batch_size=settings.batch_size,
        progress=progress,
    )


def take_statistics(
    checkpoint: Checkpoint,
    weights: str,
    model: Any,
    calibration: Calibration,
    settings: PassSettings,
    *,
    partial: Path | None = None,
    progress: Progress,
) -> Collected:
    """Return the statistics of `calibration` in the expert's own forward pass.

    Batches hold consecutive windows; the last is filled up with windows that do not count, so that all have one shape.
    No attention mask is needed: padding stands to the right, where nothing that counts can see it.

    Args:
        checkpoint: where the bounds come from.
        weights: digest of the weights, written into the result.
        model: the loaded model.
        calibration: the tokens.
        settings: batch size, device and dtype.
        partial: a folder to keep the pass under way in; the same pass, started again, goes on from there.
        progress: told of the tokens counted.

    Raises:
        CalibrationError: an activation is NaN or infinite.
    """
    computed = computed_by(checkpoint, settings)
    collector = _Collector(checkpoint, weights, calibration, computed, model.device)
    way = None
    if partial is not None:
        key = json_digest([weights, calibration.digest, computed])
        way = partial / f"{key}.safetensors"
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
            collector.attached(model),
            progress("collecting", calibration.tokens, "token") as advance,
        ):
            advance(int(calibration.lengths[: collector.done].sum()))
            for first in range(collector.done, len(calibration.ids), settings.batch_size):
                ids, keep = _batch(calibration, first, settings.batch_size)
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
    if way is not None:
        way.unlink(missing_ok=True)
    return collector.collected()


class _Collector:
    """The running sums of one pass, fed by hooks on each layer's MLP input.

    A layer's sum and the number of windows in it change together, so that an interruption at any moment, also in the
    middle of a batch, leaves sums that can be gone on from: layers ahead of others wait for them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: str,
        calibration: Calibration,
        computed: dict[str, Any],
        device: torch.device,
    ) -> None:
        self._device = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        self._computed = computed
        self._scales: Scales = mlp_input_scales(checkpoint)
        self._sums = [(Statistics.zero(layer.to(self._device)), 0) for layer in self._scales.exponents]
        self._checkpoint, self._weights, self._calibration = checkpoint, weights, calibration
        self._first, self._end, self._keep = 0, 0, torch.empty(0)

    @property
    def done(self) -> int:
        """Windows that every layer has counted."""
        return min(done for _, done in self._sums)

    def next_batch(self, first: int, size: int, keep: Tensor) -> None:
        """Tell which windows the model will see next; `keep` of shape (size, S) is True where a token counts."""
        self._first, self._end, self._keep = first, first + size, keep.flatten().to(self._device)

    @contextmanager
    def attached(self, model: Any) -> Iterator[None]:
        """Hook the MLP inputs of `model`, and let go of them afterwards."""
        modules = self._checkpoint.family.mlps(model)
        handles = [module.register_forward_pre_hook(self._hook(layer)) for layer, module in enumerate(modules)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def collected(self, *, under_way: bool = False) -> Collected:
        """Return the sums, on the CPU."""
        layers = tuple(Statistics(t.matrix.cpu(), t.exponents.cpu(), t.saturated) for t, _ in self._sums)
        done = tuple(done for _, done in self._sums) if under_way else None
        return Collected(
            self._weights,
            {MLP_INPUT: layers},
            self._calibration.digest,
            self._calibration.label,
            self._computed,
            done=done,
        )

    def save(self, way: Path) -> None:
        """Write the pass under way to `way`."""
        way.parent.mkdir(parents=True, exist_ok=True)
        statistics_file.save(way, self.collected(under_way=True))

    def resume(self, way: Path) -> None:
        """Go on from `way`, if an intact pass under way is there."""
        if not way.is_file():
            return
        try:
            found = statistics_file.load(way)
        except CheckpointError:
            return  # damaged: the pass begins anew
        if found.done is not None and found.calibration_digest == self._calibration.digest:
            layers, place = found.sites[MLP_INPUT], self._device
            sums = (Statistics(t.matrix.to(place), t.exponents.to(place), t.saturated) for t in layers)
            self._sums = list(zip(sums, found.done, strict=True))

    def _hook(self, layer: int) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def count(_module: Any, inputs: tuple[Tensor, ...]) -> None:
            total, done = self._sums[layer]
            if done > self._first:
                return  # counted before an interruption
            x = inputs[0].flatten(0, 1).to(self._device)
            try:
                self._sums[layer] = (
                    total + Statistics.of(x, total.exponents, self._keep, self._scales.bits),
                    self._end,
                )
            except ValueError as error:
                raise CalibrationError(
                    f"{self._checkpoint.label}: {error} (site {MLP_INPUT}, layer {layer})",
                    "register a checkpoint whose activations are finite, or compute with --dtype float32",
                ) from error

        return count


def _batch(calibration: Calibration, first: int, size: int) -> tuple[Tensor, Tensor]:
    """Return (ids, keep) of shape (size, S) from window `first` on; windows beyond the last do not count."""
    ids = calibration.ids[first : first + size].long()
    keep = calibration.keep[first : first + size]
    if (short := size - len(ids)) > 0:
        ids = torch.cat([ids, ids[:1].expand(short, -1)])
        keep = torch.cat([keep, torch.zeros((short, keep.shape[1]), dtype=torch.bool)])
    return ids, keep


def computed_by(checkpoint: Checkpoint, settings: PassSettings) -> dict[str, Any]:
    """Return how a pass with these settings runs, as far as its numbers depend on that."""
    return {
        "dtype": settings.dtype or checkpoint.dtype,
        "batch_size": settings.batch_size,
        "device": device_name(settings.device).partition(":")[0],
    }


def window_size(checkpoint: Checkpoint, settings: PassSettings) -> int:
    """Return the tokens in a window: what was asked for, or what the model can take."""
    return min(settings.seq_len, checkpoint.architecture.max_position_embeddings)
