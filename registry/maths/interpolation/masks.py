"""Masks of the experts of one training: sparsity, overlap, the multiplier that enforces sparsity, and the final masks.

A mask has one entry for each output (row) of each linear layer; all layers' entries stand in one row here.

Shapes: n experts, R outputs of all linear layers.
"""

import math

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from registry.maths.interpolation.hard_concrete import expected_gates, open_gates, open_probability

_SMALLEST = 1e-12


def expected_sparsity(log_alpha: Float[Tensor, "n R"]) -> Float[Tensor, ""]:
    """Return the expected share of closed gates, 1 - mean P(z ≠ 0) (from Louizos et al. 2018, eq. 12)."""
    closed: Tensor = 1 - open_probability(log_alpha)
    return closed.mean()


def overlap_matrix(masks: Float[Tensor, "n R"]) -> Float[Tensor, "n n"]:
    """Return ⟨z_m, z_m'⟩ / (‖z_m‖ ‖z_m'‖) of every two masks, in [0, 1]: Z Zᵀ of rows of unit length.

    A mask of zeros has no overlap with any, itself included.
    """
    unit = masks / masks.norm(dim=1, keepdim=True).clamp(min=_SMALLEST)
    products: Tensor = unit @ unit.T
    return products.clamp(0, 1)


def overlap(masks: Float[Tensor, "n R"]) -> Float[Tensor, ""]:
    """Return the mean overlap of two different masks, in [0, 1]; 0 of one mask."""
    count = len(masks)
    if count < 2:
        return masks.sum() * 0
    matrix = overlap_matrix(masks)
    return (matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1))


def next_multiplier(multiplier: float, sparsity: float, least: float, rate: float) -> float:
    """Return λ after a step of dual ascent, max(0, λ + rate (τ - s)).

    Args:
        multiplier: λ, 0 or more.
        sparsity: s, the expected sparsity.
        least: τ.
        rate: the size of a step.
    """
    return max(0.0, multiplier + rate * (least - sparsity))


def final_masks(log_alpha: Float[Tensor, "n R"], least: float) -> tuple[Bool[Tensor, "n R"], int]:
    """Return the masks that stay, with a share of zeros of at least τ, and the number of gates closed for that.

    Gates are open as `open_gates` says. Where too many are, those of the smallest log α are closed, of equal ones the
    last.

    Args:
        log_alpha: log α.
        least: τ, from 0 to below 1.
    """
    masks, count = open_gates(log_alpha), log_alpha.numel()
    allowed = min(count, math.ceil(count * (1 - least)) + 1)
    while (count - allowed) / count < least:
        allowed -= 1
    if (surplus := int(masks.sum()) - allowed) <= 0:
        return masks, 0
    scores = torch.where(masks, log_alpha, -torch.inf).flatten()
    kept = scores.argsort(descending=True, stable=True)[:allowed]
    return torch.zeros_like(masks).flatten().index_fill(0, kept, value=True).view_as(masks), surplus


def gate_overlap(log_alpha: Float[Tensor, "n R"]) -> Float[Tensor, ""]:
    """Return the overlap of the gates without noise."""
    return overlap(expected_gates(log_alpha))


def pack_bits(mask: Bool[Tensor, "R"]) -> UInt8[Tensor, "P"]:
    """Return a mask in bits, the first entry in the lowest bit of the first byte; P = ⌈R / 8⌉."""
    bits = torch.nn.functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(dim=1, dtype=torch.uint8)


def unpack_bits(packed: UInt8[Tensor, "P"], count: int) -> Bool[Tensor, "R"]:
    """Return the mask of `count` entries that `pack_bits` packed."""
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten()[:count].bool()
