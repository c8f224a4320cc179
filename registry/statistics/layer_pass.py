"""The forward pass layer by layer: a layer runs over all windows before the next, and one layer's sums are in memory.

The residual streams of all windows wait between two layers, so that every layer still runs once for each window.

Shapes: N windows of a calibration, S tokens of a window, B windows of a batch; H hidden size, L layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.families.sites import MLP_INPUT
from registry.maths.statistics import Statistics
from registry.progress import Advance, Progress
from registry.runtime.layerwise import LayerCalls
from registry.statistics.site_sums import Counting, HookPoint, SiteSums, batch

Stream = Float[Tensor, "B S H"]


@dataclass(frozen=True)
class Batches:
    """The batches of a calibration.

    Attributes:
        calibration: the tokens.
        size: B; all batches have one shape, as in `take_statistics`.
    """

    calibration: Calibration
    size: int

    def __len__(self) -> int:
        return -(-len(self.calibration.ids) // self.size)

    def __iter__(self) -> Iterator[tuple[int, Int64[Tensor, "B S"], Bool[Tensor, "B S"]]]:
        """Yield the first window of each batch, its tokens, and which of them count."""
        for first in range(0, len(self.calibration.ids), self.size):
            yield first, *batch(self.calibration, first, self.size)


@dataclass(frozen=True)
class Streams:
    """The residual streams of all batches.

    Attributes:
        before: returns that of a batch before the layer, given the batch's first window and its tokens.
        after: takes that of a batch after the layer, given the batch's first window.
    """

    before: Callable[[int, Int64[Tensor, "B S"]], Stream]
    after: Callable[[int, Stream], None]


def run_module(
    module: Callable[[Stream], Stream],
    sums: SiteSums,
    points: Sequence[HookPoint],
    batches: Batches,
    streams: Streams,
    advance: Advance,
) -> None:
    """Run one module over all batches, and add up the sites within it.

    Args:
        module: a layer, or the norm before the head.
        sums: the sums of its sites.
        points: the hook points of its sites; others may be among them.
        batches: the batches.
        streams: what the module runs on and gives.
        advance: receives every batch.

    Raises:
        CalibrationError: an activation is NaN or infinite.
    """
    with torch.no_grad(), sums.attached(points):
        for first, ids, keep in batches:
            sums.next_batch(first, keep)
            streams.after(first, module(streams.before(first, ids)))
            advance(1)


def mlp_statistics(
    checkpoint: Checkpoint, model: Any, calibration: Calibration, batch_size: int, progress: Progress
) -> Iterator[Statistics]:
    """Yield the statistics of each layer's MLP inputs, on the CPU: to the bit those of `take_statistics`.

    Besides the model, N · S · H activations and the sums of one layer are in memory.

    Args:
        checkpoint: the checkpoint that the bounds are computed from.
        model: the same, loaded. Between two layers it is whole.
        calibration: the tokens.
        batch_size: B.
        progress: reports layers.

    Raises:
        CalibrationError: an activation is NaN or infinite.
    """
    calls, batches = LayerCalls(model, checkpoint.family.layers), Batches(calibration, batch_size)
    counting = Counting.of(checkpoint, "router", model.device)
    layers: Any = model.get_submodule(checkpoint.family.layers)
    waiting: dict[int, Stream] = {}

    def sums_of(number: int, layer: nn.Module, mlp: nn.Module) -> Statistics:
        streams = Streams(lambda first, ids: calls.embed(ids) if number == 0 else waiting[first], waiting.__setitem__)
        sums, points = SiteSums(counting, [(MLP_INPUT, number)]), [HookPoint(MLP_INPUT, number, mlp)]
        run_module(lambda stream: calls.run(number, layer, stream), sums, points, batches, streams, lambda amount: None)
        return sums.pop((MLP_INPUT, number))

    with progress("collecting", len(layers), "layer") as advance:
        for number, (layer, mlp) in enumerate(zip(layers, checkpoint.family.mlps(model), strict=True)):
            yield sums_of(number, layer, mlp)
            advance(1)
