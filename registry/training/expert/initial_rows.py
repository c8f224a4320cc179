"""The first router rows of an expert that is trained beside a public one: differences of two texts' embeddings.

Shapes: L layers, H hidden size, N windows, B windows of a batch, S tokens of a window.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from registry.errors import CalibrationError
from registry.maths.router.gates import initial_row
from registry.training.expert.coordinated import CoordinatedMLP
from registry.training.processes import Processes
from registry.training.sharding import spread

WINDOWS = 32
"""Most windows of each text whose embedding is taken."""


def begin_rows(
    model: Any,
    layers: Sequence[CoordinatedMLP],
    own: tuple[Int64[Tensor, "N S"], Bool[Tensor, "N S"]],
    public: tuple[Int64[Tensor, "M S"], Bool[Tensor, "M S"]],
    batch_size: int,
    processes: Processes,
) -> None:
    """Set the row of every layer to the difference of the embeddings of two texts (`maths.router.gates`).

    The model still computes what the base model does, because both MLPs of a layer are equal.

    Args:
        model: the model before its training.
        layers: its MLPs, layer by layer.
        own: token ids of the expert's text, and which of them count.
        public: the same of public text.
        batch_size: windows that pass through the model at once.
        processes: the processes that train; each passes all windows.

    Raises:
        CalibrationError: a mean is zero, NaN or infinite.
    """
    means, public_means = (_mean_inputs(model, layers, *text, batch_size) for text in (own, public))
    for number, (layer, mean, public_mean) in enumerate(zip(layers, means, public_means, strict=True)):
        try:
            row = initial_row(mean, public_mean)
        except ValueError as error:
            raise CalibrationError(
                f"layer {number} has no first router row: {error}", "train without --public-data: its row begins at 0"
            ) from error
        with torch.no_grad():
            layer.row.copy_(spread(row, layer.row, processes))


def _mean_inputs(
    model: Any,
    layers: Sequence[CoordinatedMLP],
    ids: Int64[Tensor, "N S"],
    keep: Bool[Tensor, "N S"],
    batch_size: int,
) -> Float64[Tensor, "L H"]:
    """Return the mean MLP input of every layer over the tokens that count."""
    device = layers[0].row.device
    sums = torch.zeros(len(layers), len(layers[0].row), dtype=torch.float64)
    counting: list[Tensor] = []  # (B, S) of the current batch

    def add(layer: int, x: Tensor) -> None:
        sums[layer] += x[counting[-1]].double().sum(dim=0).cpu()  # (B, S, H) → (T, H) → (H,)

    handles = [
        layer.register_forward_pre_hook(lambda _module, inputs, number=number: add(number, inputs[0]))
        for number, layer in enumerate(layers)
    ]
    model.eval()
    try:
        for some, counted in zip(ids.split(batch_size), keep.split(batch_size), strict=True):
            counting[:] = [counted.to(device)]
            with torch.no_grad():
                model(input_ids=some.to(device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
        model.train()
    return sums / int(keep.sum())
