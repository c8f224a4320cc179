"""Fixed-point scales of a checkpoint's statistics, computed from its weights alone.

Shapes: H hidden size, C channels of a site (H, or heads times their size), K key-value heads, D their size, V the
vocabulary. All bounds are float64, one a channel.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int16
from torch import Tensor

from registry.checkpoint import Checkpoint
from registry.families import NormOutput
from registry.families.sites import ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT
from registry.io.torch_blocks import to_tensor
from registry.maths.fixed_point import (
    MIXED_MARGIN,
    NORM_BITS,
    RESIDUAL_BITS,
    exponents_for,
    norm_bound,
    residual_bounds,
)


@dataclass(frozen=True)
class Scales:
    """Scales of one site: the exponents of each layer, and the bits of an integer."""

    exponents: tuple[Int16[Tensor, "C"], ...]
    bits: int


def scales(checkpoint: Checkpoint, site: str) -> Scales:
    """Return the scales of a checkpoint's statistics at one site."""
    family, bits = checkpoint.family, NORM_BITS
    source = family.mlp_input(checkpoint.architecture) if site == MLP_INPUT else family.attention_norm
    if site == HEAD_INPUT:
        bounds = [norm_bound(*_norm(checkpoint, family.last_norm.norm, family.last_norm))]
    elif site == ATTENTION_OUTPUT:
        bounds, bits = _attention_output(checkpoint), RESIDUAL_BITS
    elif source is None:
        stream = _stream_bounds(checkpoint)
        bounds, bits = stream[_AFTER_ATTENTION if site == MLP_INPUT else _BEFORE_LAYERS], RESIDUAL_BITS
    else:
        names = [family.tensor_name(layer, source.norm) for layer in _layers(checkpoint)]
        bounds = [norm_bound(*_norm(checkpoint, name, source)) for name in names]
    return Scales(tuple(exponents_for(bound, bits) for bound in bounds), bits)


_BEFORE_LAYERS, _AFTER_ATTENTION = slice(None, -1, 2), slice(1, None, 2)
"""The bounds of the residual stream before each layer, and after each layer's attention, before its MLP."""


def _attention_output(checkpoint: Checkpoint) -> list[Tensor]:
    """Bound a head's output, a weighted mean of values, by the largest value that its inputs can give.

    With v = W(γ ∘ n + β) + b and ‖n‖₂ ≤ √H, |v_i| ≤ √H ‖W_i ∘ γ‖₂ + |W_i β + b_i| (Cauchy-Schwarz); from the residual
    stream, |v_i| ≤ Σ_j |W_ij| bound_j + |b_i|.
    """
    architecture, family = checkpoint.architecture, checkpoint.family
    source = family.attention_norm
    stream = _stream_bounds(checkpoint)[_BEFORE_LAYERS] if source is None else []
    bounds = []
    for layer in _layers(checkpoint):
        weight, bias = _values(checkpoint, layer)  # (K D, H), (K D,)
        if source is not None:
            gain, shift = _norm(checkpoint, family.tensor_name(layer, source.norm), source)  # (H,) each
            constant = bias if shift is None else bias + weight @ shift.double()
            bound = math.sqrt(architecture.hidden_size) * (weight * gain).norm(dim=1) + constant.abs()
        else:
            bound = weight.abs() @ stream[layer] + bias.abs()
        heads = bound.view(architecture.num_key_value_heads, architecture.head_dim)  # (K D,) → (K, D)
        groups = architecture.num_attention_heads // architecture.num_key_value_heads
        # (K, D) → (heads, D) → (C,): each key-value head serves a group of consecutive query heads.
        bounds.append(heads.repeat_interleave(groups, dim=0).flatten() * MIXED_MARGIN)
    return bounds


def _layers(checkpoint: Checkpoint) -> range:
    return range(checkpoint.architecture.num_hidden_layers)


def _norm(checkpoint: Checkpoint, name: str, norm: NormOutput) -> tuple[Tensor, Tensor | None]:
    """Return the gain of a norm, float64 of shape (H,), and its bias (H,), if it has one."""
    bias = checkpoint.tensor(f"{name}.bias") if norm.bias else None
    return checkpoint.tensor(f"{name}.weight").double() + norm.offset, bias


def _values(checkpoint: Checkpoint, layer: int) -> tuple[Tensor, Tensor]:
    """Return the weight (K D, H) and the bias (K D,) of a layer's values, in float64."""
    attention = checkpoint.family.attention(checkpoint.architecture)
    name = checkpoint.family.tensor_name(layer, attention.values)
    rows = slice(None) if attention.value_rows is None else list(attention.value_rows)
    weight = checkpoint.tensor(f"{name}.weight")[rows].double()
    if f"{name}.bias" not in checkpoint.shapes:
        return weight, weight.new_zeros(len(weight))
    return weight, checkpoint.tensor(f"{name}.bias")[rows].double()


def _stream_bounds(checkpoint: Checkpoint) -> list[Tensor]:
    """Return the bounds (H,) of the residual stream before the first layer and after each output added to it."""
    source = checkpoint.source(checkpoint.family.embedding)
    largest = [to_tensor(block, source.dtype).double().abs().amax(dim=0) for block in source.blocks()]
    embedding = torch.stack(largest).amax(dim=0)  # blocks of rows of (V, H) → (H,): the largest of any token
    added = [
        norm_bound(checkpoint.tensor(checkpoint.family.tensor_name(layer, f"{norm}.weight")))
        for layer in _layers(checkpoint)
        for norm in ("post_attention_layernorm", "post_feedforward_layernorm")
    ]
    return [embedding, *residual_bounds(embedding, added)]
