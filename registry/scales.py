"""The fixed-point scales of a checkpoint's statistics: they follow from its weights alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from registry.checkpoint import Checkpoint
from registry.families import NormOutput, ResidualStream
from registry.maths.fixed_point import NORM_BITS, RESIDUAL_BITS, exponents_for, norm_bound, residual_bounds
from registry.tensors import to_tensor


@dataclass(frozen=True)
class Scales:
    """Of one site: the exponents of each layer, int16 of shape (H,), and the bits of an integer."""

    exponents: tuple[Tensor, ...]
    bits: int


def mlp_input_scales(checkpoint: Checkpoint) -> Scales:
    """Return the scales of a checkpoint's MLP inputs."""
    match checkpoint.family.mlp_input(checkpoint.architecture):
        case NormOutput() as norm:
            bounds, bits = _norm_bounds(checkpoint, norm), NORM_BITS
        case ResidualStream() as stream:
            bounds, bits = _residual_bounds(checkpoint, stream), RESIDUAL_BITS
    return Scales(tuple(exponents_for(bound, bits) for bound in bounds), bits)


def _norm_bounds(checkpoint: Checkpoint, norm: NormOutput) -> list[Tensor]:
    bounds = []
    for layer in range(checkpoint.architecture.num_hidden_layers):
        name = checkpoint.family.below(layer, norm.norm)
        bias = checkpoint.tensor(f"{name}.bias") if norm.bias else None
        bounds.append(norm_bound(checkpoint.tensor(f"{name}.weight").double() + norm.offset, bias))
    return bounds


def _residual_bounds(checkpoint: Checkpoint, stream: ResidualStream) -> list[Tensor]:
    source = checkpoint.source(stream.embedding)
    largest = [to_tensor(block, source.dtype).double().abs().amax(dim=0) for block in source.blocks()]
    added = [
        norm_bound(checkpoint.tensor(checkpoint.family.below(layer, f"{norm}.weight")))
        for layer in range(checkpoint.architecture.num_hidden_layers)
        for norm in (stream.after_attention, stream.after_mlp)
    ]
    bounds = residual_bounds(torch.stack(largest).amax(dim=0), added)
    return bounds[::2]  # the MLP of a layer sees what the layer's attention has added, not yet what it adds itself
