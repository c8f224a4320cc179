"""The running sums of a model's sites, filled by hooks on its modules, batch by batch.

Shapes: N windows of a calibration, S tokens of a window, B windows of a batch, T = B · S tokens of a batch, row by row;
H channels of a site (the hidden size, or heads times their size).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int16, Int64
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT, SITES
from registry.io.process import defer_interrupts
from registry.maths.digits import Splitter
from registry.maths.gram import GramAccumulator
from registry.maths.statistics import Statistics
from registry.statistics.scales import Scales, scales


class RunningSums:
    """The sums, and the number of windows in them.

    Both change together: Ctrl-C waits until they have, and any other interruption leaves `broken` sums, which must not
    be used.
    """

    def __init__(self, exponents: Int16[Tensor, "H"], bits: int, splitter: Splitter) -> None:
        self._sums = GramAccumulator(exponents, bits, splitter)
        self.completed_windows, self.broken = 0, False

    def restore(self, total: Statistics, completed_windows: int) -> None:
        """Start from the sums of an interrupted pass and the number of windows in them."""
        self._sums.include(total.matrix.to(self._sums.exponents.device), total.saturated)
        self.completed_windows = completed_windows

    def add(self, rows: Float[Tensor, "T H"], runs: Sequence[slice], completed_windows: int) -> None:
        """Add the rows of a batch that count, and set the number of windows that the sums hold afterwards.

        (ValueError: an activation that counts is NaN or infinite, or the sums leave 64-bit integers.)
        """
        with defer_interrupts():
            self.broken = True
            if runs:
                self._sums.add([rows[run] for run in runs])  # views of the rows that count, not copied
            self.completed_windows, self.broken = completed_windows, False

    def statistics(self) -> Statistics:
        """Return the sums on the CPU."""
        return Statistics(self._sums.matrix().cpu(), self._sums.exponents.cpu(), self._sums.saturated)


SiteLayer = tuple[str, int]


@dataclass(frozen=True)
class HookPoint:
    """The module of a loaded model at which a layer's site is read: its input, or (`after`) its output."""

    site: str
    layer: int
    module: nn.Module
    after: bool = False


def dense_hook_points(checkpoint: Checkpoint, model: Any) -> list[HookPoint]:
    """Return the hook points of the checkpoint's own dense model."""
    family, architecture = checkpoint.family, checkpoint.architecture
    attention = family.attention(architecture)
    points = [HookPoint(MLP_INPUT, layer, module) for layer, module in enumerate(family.mlps(model))]
    for layer in range(architecture.num_hidden_layers):
        for site, name in ((ATTENTION_INPUT, attention.inputs[0]), (ATTENTION_OUTPUT, attention.output)):
            points.append(HookPoint(site, layer, model.get_submodule(family.tensor_name(layer, name))))
    head_norm = model.get_submodule(family.last_norm.norm)
    return [*points, HookPoint(HEAD_INPUT, 0, head_norm, after=True)]


@dataclass(frozen=True)
class Counting:
    """The sites and scales that a pass counts, of all layers."""

    label: str
    scales: dict[str, Scales]
    same: dict[str, str]  # as `same_inputs` returns it; the other site has the sums
    device: torch.device
    splitter: Splitter  # the room that all sums share

    @classmethod
    def of(cls, checkpoint: Checkpoint, sites: str, device: torch.device, *, dense: bool = True) -> "Counting":
        """Return what a pass over the sites of `SITES[sites]` counts, with the bounds of a checkpoint.

        With `dense` the model is the checkpoint's own. Routed models may see other activations at a site, so only a
        dense model's sites share sums.
        """
        same = same_inputs(checkpoint, sites) if dense else {}
        on = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
        bounds = {site: scales(checkpoint, site) for site in SITES[sites]}
        return cls(checkpoint.label, bounds, same, on, Splitter())

    @property
    def site_layers(self) -> list[SiteLayer]:
        """The sites and layers that have sums of their own."""
        return [
            (site, layer)
            for site, scale in self.scales.items()
            if site not in self.same
            for layer in range(len(scale.exponents))
        ]


class SiteSums:
    """The running sums of some sites and layers.

    Each counts its own windows. After an interruption in the middle of a batch, those that are ahead skip the windows
    that they have counted.
    """

    def __init__(self, counting: Counting, site_layers: Collection[SiteLayer]) -> None:
        self._counting = counting
        self.sums: dict[SiteLayer, RunningSums] = {}
        for site, layer in site_layers:
            scale = counting.scales[site]
            exponents = scale.exponents[layer].to(counting.device)
            self.sums[site, layer] = RunningSums(exponents, scale.bits, counting.splitter)
        # The current batch: its first window and the one after its last; the rows that count.
        self._first, self._end = 0, 0
        self._runs: tuple[slice, ...] = ()

    @property
    def completed_windows(self) -> int:
        """Windows that every layer has counted."""
        return min(sums.completed_windows for sums in self.sums.values())

    @property
    def broken(self) -> bool:
        """True if an interrupted addition left sums that must not be used."""
        return any(sums.broken for sums in self.sums.values())

    def next_batch(self, first: int, keep: Bool[Tensor, "B S"]) -> None:
        """Set the windows that the model sees next."""
        size, seq_len = keep.shape
        self._first, self._end = first, first + size
        # Padding stands to the right, so that the rows of a window that count, of (T, H), are one run.
        lengths = keep.sum(dim=1).tolist()
        self._runs = _joined(slice(seq_len * row, seq_len * row + length) for row, length in enumerate(lengths))

    @contextmanager
    def attached(self, points: Iterable[HookPoint]) -> Iterator[None]:
        """Hook the modules of these sums while the context is open; other hook points are left out."""
        with ExitStack() as stack:
            for point in points:
                if (point.site, point.layer) in self.sums:
                    stack.enter_context(self._hook(point))
            yield

    def pop(self, site_layer: SiteLayer) -> Statistics:
        """Return the sums of one site and layer on the CPU; release them."""
        return self.sums.pop(site_layer).statistics()

    def _hook(self, point: HookPoint) -> RemovableHandle:
        if point.after:
            return point.module.register_forward_hook(lambda _, inputs, output: self._count(point, output))
        return point.module.register_forward_pre_hook(lambda _, inputs: self._count(point, inputs[0]))

    def _count(self, point: HookPoint, activations: Float[Tensor, "*B H"]) -> None:
        sums = self.sums[point.site, point.layer]
        if sums.completed_windows > self._first:
            return  # counted before an interruption
        # (B, S, H), of a gate (T, H) → (T, H)
        x = activations.reshape(-1, activations.shape[-1]).to(self._counting.device)
        try:
            sums.add(x, self._runs, self._end)
        except ValueError as error:
            raise CalibrationError(
                f"{self._counting.label}: {error} (site {point.site}, layer {point.layer})",
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


def same_inputs(checkpoint: Checkpoint, sites: str) -> dict[str, str]:
    """Return those of `SITES[sites]` whose activations equal those of another site of the same layer: → that site."""
    family, architecture = checkpoint.family, checkpoint.architecture
    norm = family.attention_norm
    if sites == "all" and norm is not None and norm == family.mlp_input(architecture):
        return {ATTENTION_INPUT: MLP_INPUT}
    return {}


@dataclass(frozen=True)
class Batches:
    """The batches of a calibration, all of one shape with B = `size`: the last is filled up with copies of a window."""

    calibration: Calibration
    size: int

    def __len__(self) -> int:
        return -(-len(self.calibration.ids) // self.size)

    def after(self, start: int) -> Iterator[tuple[int, Int64[Tensor, "B S"], Bool[Tensor, "B S"]]]:
        """Yield the first window of each batch from window `start` on, its tokens, and which of them count."""
        for first in range(start, len(self.calibration.ids), self.size):
            ids = self.calibration.ids[first : first + self.size].long()
            keep = self.calibration.keep[first : first + self.size]
            if (short := self.size - len(ids)) > 0:
                ids = torch.cat([ids, ids[:1].expand(short, -1)])  # (B - short, S) → (B, S)
                keep = torch.cat([keep, torch.zeros((short, keep.shape[1]), dtype=torch.bool)])
            yield first, ids, keep
