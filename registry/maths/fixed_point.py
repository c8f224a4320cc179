"""Fixed-point activations: integers of 16 bits whose scales follow from the weights alone.

A site's channel i is known to satisfy |y_i| ≤ bound_i before any token is seen. It gets the largest power-of-two
scale 2^{p_i} for which that bound fits into a signed 16-bit integer, so q_i = round(y_i · 2^{p_i}) never saturates and
p never depends on the data. Sums of products of such integers are exact, hence independent of order and of how tokens
are split.
"""

import math

import torch
from jaxtyping import Bool, Float, Int16, Int64
from torch import Tensor

LIMIT = 2**15 - 1
"""The largest magnitude a quantised activation can have."""

MARGIN = 1 + 2**-6
"""Room for rounding in the model: normalising and scaling in bfloat16 round by at most 2^-8 each."""

EXPONENT_LIMIT = 100
"""|p_i| at most, so that 2^p_i and y_i · 2^p_i stay within float32. A channel that wants more is zero in effect."""


def rms_norm_bound(weight: Float[Tensor, "H"]) -> Float[Tensor, "H"]:
    """Return bound_i ≥ |y_i| for the output y = weight ∘ n of an RMSNorm, as float64.

    ‖n‖₂ ≤ √H, so |y_i| ≤ |weight_i| √H; `MARGIN` covers the model's own rounding.
    """
    return weight.double().abs() * (math.sqrt(weight.numel()) * MARGIN)


def exponents_for(bound: Float[Tensor, "H"]) -> Int16[Tensor, "H"]:
    """Return the largest p_i with bound_i · 2^{p_i} ≤ 32767, within ±`EXPONENT_LIMIT`; for bound 0 the upper limit.

    Raises:
        ValueError: a bound is negative, infinite or NaN.
    """
    bound = bound.double()
    if not bool(torch.isfinite(bound).all()) or bool((bound < 0).any()):
        raise ValueError("a channel's bound is negative or not finite")
    # bound = m · 2^e with m in [1/2, 1), so bound · 2^(15-e) = m · 2^15 fits unless m > 32767 / 32768.
    mantissa, exponent = torch.frexp(bound)
    p = 15 - exponent.to(torch.int64) - (mantissa > LIMIT / 2**15).to(torch.int64)
    p = torch.where(bound == 0, torch.full_like(p, EXPONENT_LIMIT), p)
    return p.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).to(torch.int16)


def power_of_two(p: Int16[Tensor, "H"]) -> Float[Tensor, "H"]:
    """Return 2^p as float64, exactly, for |p| ≤ 1022: the exponent's bits are written, since `exp2` may round."""
    return ((p.to(torch.int64) + 1023) << 52).view(torch.float64)


def quantise(
    y: Float[Tensor, "T H"], exponents: Int16[Tensor, "H"]
) -> tuple[Float[Tensor, "T H"], Bool[Tensor, "T H"]]:
    """Return (q, saturated): q = round(y · 2^p), half to even, held within ±32767, and where it had to be held.

    q keeps a floating dtype (float32 or wider: every 16-bit integer is exact); scaling by a power of two is exact.

    Raises:
        ValueError: an activation is NaN or infinite.
    """
    if not bool(torch.isfinite(y).all()):
        raise ValueError("an activation is NaN or infinite")
    y = y if y.dtype == torch.float64 else y.float()
    q = torch.round(y * power_of_two(exponents).to(y.dtype))
    saturated = q.abs() > LIMIT
    return q.clamp(-LIMIT, LIMIT), saturated


def real_value(q: Int64[Tensor, "H H"], exponents: Int16[Tensor, "H"]) -> Float[Tensor, "H H"]:
    """Return A_ij = Q_ij · 2^{-(p_i + p_j)} as float64; the only rounding is that of integers beyond 2^53."""
    scale = power_of_two(-exponents)
    return q.double().mul_(scale[:, None]).mul_(scale[None, :])
