"""Fixed-point activations: integers of 16 or 20 bits whose scales follow from the weights alone.

A site's channel i is known to satisfy |y_i| ≤ bound_i before any token is seen. It gets the largest power-of-two
scale 2^{p_i} for which that bound fits into a signed integer of so many bits, so q_i = round(y_i · 2^{p_i}) never
saturates and p never depends on the data. Sums of products of such integers are exact, hence independent of order and
of how tokens are split.

The output of a norm takes 16 bits; the residual stream and attention's output take 20, since they stay far below their
bounds: a sum over all layers, and the largest value that a head could give.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int16, Int64
from torch import Tensor

NORM_BITS = 16
"""Bits of an integer that represents the output of a norm."""

RESIDUAL_BITS = 20
"""Bits of an integer that represents the residual stream, or attention's output."""

MARGIN = 1 + 2**-6
"""Room for rounding in the model: normalising and scaling in bfloat16 round by at most 2^-8 each."""

MIXED_MARGIN = 1 + 2**-4
"""Room for rounding where a bound goes through a projection and a weighted mean, five roundings of 2^-8 at most."""

EXPONENT_LIMIT = 100
"""|p_i| at most, so that 2^p_i and y_i · 2^p_i stay within float32. A channel that wants more is zero in effect."""


def limit(bits: int) -> int:
    """Return the largest magnitude that a quantised activation of so many bits can have: 32,767 for 16."""
    return int(2 ** (bits - 1) - 1)


def norm_bound(weight: Float[Tensor, "H"], bias: Float[Tensor, "H"] | None = None) -> Float[Tensor, "H"]:
    """Return bound_i ≥ |y_i| for the output y = weight ∘ n + bias of an RMSNorm or a LayerNorm, as float64.

    ‖n‖₂ ≤ √H for both, so |y_i| ≤ |weight_i| √H + |bias_i|; `MARGIN` covers the model's own rounding.
    """
    bound = weight.double().abs() * math.sqrt(weight.numel())
    return (bound if bias is None else bound + bias.double().abs()) * MARGIN


def residual_bounds(embedding: Float[Tensor, "H"], outputs: Sequence[Float[Tensor, "H"]]) -> list[Float[Tensor, "H"]]:
    """Return bounds of the residual stream after each of the outputs that are added to it one by one, as float64.

    `embedding` is the largest magnitude of each channel among all embeddings, `outputs` has `norm_bound` of each norm
    whose output is added. Every addition rounds, in bfloat16 by at most 2^-8 of its result, and widens the bound.
    """
    bounds, bound = [], embedding.double()
    for output in outputs:
        bound = (bound + output) * (1 + 2**-8)
        bounds.append(bound)
    return bounds


def exponents_for(bound: Float[Tensor, "H"], bits: int = NORM_BITS) -> Int16[Tensor, "H"]:
    """Return the largest p_i with bound_i · 2^{p_i} ≤ `limit(bits)`, within ±`EXPONENT_LIMIT`; for bound 0 the limit.

    (ValueError: a bound is negative, infinite or NaN.)
    """
    bound = bound.double()
    if not bool(torch.isfinite(bound).all()) or bool((bound < 0).any()):
        raise ValueError("a channel's bound is negative or not finite")
    # bound = m · 2^e with m in [1/2, 1), so with b = bits - 1 bound · 2^(b-e) = m · 2^b fits unless m > 1 - 2^-b.
    mantissa, exponent = torch.frexp(bound)
    p = bits - 1 - exponent.to(torch.int64) - (mantissa > limit(bits) / 2 ** (bits - 1)).to(torch.int64)
    p = torch.where(bound == 0, torch.full_like(p, EXPONENT_LIMIT), p)
    return p.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).to(torch.int16)


def power_of_two(p: Int16[Tensor, "H"]) -> Float[Tensor, "H"]:
    """Return 2^p as float64, exactly, for |p| ≤ 1022: the exponent's bits are written, since `exp2` may round."""
    return ((p.to(torch.int64) + 1023) << 52).view(torch.float64)


def quantise(
    y: Float[Tensor, "T H"], exponents: Int16[Tensor, "H"], bits: int = NORM_BITS
) -> tuple[Float[Tensor, "T H"], Bool[Tensor, "T H"]]:
    """Return (q, saturated): q = round(y · 2^p), half to even, held within ±`limit(bits)`, and where it had to be.

    q keeps a floating dtype (float32 or wider: integers to 24 bits are exact); scaling by a power of two is exact
    (ValueError: an activation is NaN or infinite).
    """
    if not bool(torch.isfinite(y).all()):
        raise ValueError("an activation is NaN or infinite")
    y = y if y.dtype == torch.float64 else y.float()
    q = torch.round(y * power_of_two(exponents).to(y.dtype))
    largest = limit(bits)
    return q.clamp(-largest, largest), q.abs() > largest


def real_value(q: Int64[Tensor, "H H"], exponents: Int16[Tensor, "H"]) -> Float[Tensor, "H H"]:
    """Return A_ij = Q_ij · 2^{-(p_i + p_j)} as float64; the only rounding is that of integers beyond 2^53."""
    scale = power_of_two(-exponents)
    return q.double().mul_(scale[:, None]).mul_(scale[None, :])
