"""The statistics of MLP inputs layer by layer, in a loaded dense model: one layer's sums are in memory at a time.

The forward pass of `forward_pass` holds the sums of all layers, which is more than the sizes of an expert allow where
nothing but their solution is kept. Here the residual streams of all windows wait between two layers instead, so that
every layer still runs once for each window.

Shapes: N windows of a calibration, S tokens of a window, B windows of a batch, T tokens of a batch that count; H hidden
size, L layers.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.families.sites import MLP_INPUT
from registry.maths.gram import GramAccumulator
from registry.maths.limbs import Splitter
from registry.maths.statistics import Statistics
from registry.progress import Progress
from registry.runtime.layerwise import layer_alone, watched
from registry.statistics.forward_pass import batch
from registry.statistics.scales import scales


def mlp_statistics(
    checkpoint: Checkpoint, model: Any, calibration: Calibration, batch_size: int, progress: Progress
) -> Iterator[Statistics]:
    """Yield the statistics of each layer's MLP inputs, on the CPU: to the bit those of `take_statistics`.

    Besides the model, N · S · H activations and the sums of one layer are in memory.

    Args:
        checkpoint: the checkpoint that the bounds are computed from.
        model: the same, loaded. Between two layers it is whole.
        calibration: the tokens.
        batch_size: B; all batches have one shape, as in `take_statistics`.
        progress: reports layers.

    Raises:
        CalibrationError: an activation is NaN or infinite.
    """
    scale, splitter = scales(checkpoint, MLP_INPUT), Splitter()
    device = torch.device("cpu") if model.device.type == "mps" else model.device  # mps has no float64
    firsts = range(0, len(calibration.ids), batch_size)
    layers, mlps = model.get_submodule(checkpoint.family.layers), list(checkpoint.family.mlps(model))
    streams: list[Tensor | None] = [None for _ in firsts]  # (B, S, H) each, before the layer

    def sums_of(layer: int) -> Statistics:
        exponents = scale.exponents[layer]
        sums = GramAccumulator(exponents.to(device), scale.bits, splitter)
        for number, first in enumerate(firsts):
            ids, keep = batch(calibration, first, batch_size)
            x, streams[number] = _run(model, layer_alone(layers, layer, streams[number]), mlps[layer], ids)
            try:
                sums.add([x.to(device)[keep.to(device)]])  # (B, S, H) → (T, H)
            except ValueError as error:
                raise CalibrationError(
                    f"{checkpoint.label}: {error} (site {MLP_INPUT}, layer {layer})",
                    "register a checkpoint whose activations are finite",
                ) from error
        return Statistics(sums.matrix().cpu(), exponents, sums.saturated)

    with progress("collecting", len(scale.exponents), "layer") as advance:
        for layer in range(len(scale.exponents)):
            yield sums_of(layer)
            advance(1)


def _run(
    model: Any, alone: AbstractContextManager[nn.Module], mlp: nn.Module, ids: Int64[Tensor, "B S"]
) -> tuple[Float[Tensor, "B S H"], Float[Tensor, "B S H"]]:
    """Run one layer of a model, and return the input of its MLP, and the stream after the layer.

    Args:
        model: the model.
        alone: the context of `layer_alone`.
        mlp: the MLP of the layer.
        ids: the tokens.
    """
    with torch.no_grad(), alone as layer, watched({"mlp": mlp, "layer": layer}) as seen:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    after: Any = seen["layer"][1]
    return seen["mlp"][0], after[0] if isinstance(after, tuple) else after  # some give attention weights too
