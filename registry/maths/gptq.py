"""Matrices in few bits: rounded to the nearest, or by GPTQ with the Gram of their inputs.

W (O, I) becomes integers q (O, I) and a scale for each row and group of g columns, s (O, I / g): Ŵ = s q. Rounding to
the nearest makes each weight's own error small. GPTQ (Frantar et al. 2022, arXiv 2210.17323, Algorithm 1) makes that of
the outputs small, tr((W - Ŵ) A (W - Ŵ)ᵀ) with A = Σ_t x_t x_tᵀ: column by column, it adds to the columns that are still
to be rounded what makes up for the error so far.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int8
from torch import Tensor

_DAMPING = 0.01
"""Part of the mean of A's diagonal that is added to it (section 4 of that paper)."""

_SHRINK = (1.0, 0.9375, 0.875, 0.78, 0.7)
"""Parts of the largest weight of a group that may become its largest integer; the best one is taken."""


@dataclass(frozen=True)
class Rounded:
    """A matrix in few bits: integers from -2^(b-1) to 2^(b-1) - 1, and their scales in the dtype that is stored."""

    integers: Int8[Tensor, "O I"]
    scales: Float[Tensor, "O G"]

    @property
    def weights(self) -> Float[Tensor, "O I"]:
        """Ŵ in float32."""
        group = self.integers.shape[1] // self.scales.shape[1]
        return self.integers.float() * self.scales.float().repeat_interleave(group, dim=1)


def nearest(weight: Float[Tensor, "O I"], bits: int, group: int, dtype: torch.dtype) -> Rounded:
    """Return a matrix rounded to the nearest; `group` divides I, and scales are of `dtype`."""
    parts = weight.float().unflatten(1, (-1, group))
    scales = torch.stack([_scale(parts[:, number], bits, dtype) for number in range(parts.shape[1])], dim=1)
    return Rounded(_round(parts, scales[..., None], bits).flatten(1), scales.to(dtype))


def gptq(
    weight: Float[Tensor, "O I"], factor: Float[Tensor, "I I"], bits: int, group: int, dtype: torch.dtype
) -> Rounded:
    """Return a matrix rounded by GPTQ; the factor is that of its inputs, and the rest as in `nearest`.

    Time grows with O I².
    """
    rest = weight.float().clone()
    integers, scales = torch.empty_like(rest, dtype=torch.int8), []
    for begin in range(0, rest.shape[1], group):
        end = begin + group
        block, own = rest[:, begin:end], factor[begin:end, begin:end]
        scale, errors = _scale(block, bits, dtype), torch.empty_like(block)
        for at in range(group):
            column = block[:, at]
            rounded = integers[:, begin + at] = _round(column, scale, bits)
            errors[:, at] = (column - rounded * scale) / own[at, at]
            block[:, at:] -= torch.outer(errors[:, at], own[at, at:])
        rest[:, end:] -= errors @ factor[begin:end, end:]
        scales.append(scale)
    return Rounded(integers, torch.stack(scales, dim=1).to(dtype))


def output_size(weight: Float[Tensor, "O I"], gram: Float[Tensor, "I I"]) -> float:
    """Return Σ_t |W x_t|², by the Gram of x; products are in float32."""
    weight = weight.float()
    return float(((weight @ gram.float()) * weight).sum(dtype=torch.float64))


def inverse_factor(gram: Float[Tensor, "I I"]) -> Float[Tensor, "I I"]:
    """Return the upper Cholesky factor of (A + damping)⁻¹ in float32 (steps 2 and 3 of the algorithm); A is float64.

    Matrices of one input have it in common. Time grows with I³.
    """
    damped = gram.clone()
    damped.diagonal().add_(_DAMPING * float(gram.diagonal().mean()) or 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper.float()


def _round(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    largest = 2 ** (bits - 1)
    return (weight / scale).round().clamp(-largest, largest - 1).to(torch.int8)


def _scale(weight: Float[Tensor, "O g"], bits: int, dtype: torch.dtype) -> Float[Tensor, "O"]:
    """Return the scale of each row in float32, as `dtype` holds it: of `_SHRINK` the one of the least squared error."""
    most = weight.abs().amax(dim=1) / (2 ** (bits - 1) - 1)
    best, least = torch.ones_like(most), torch.full_like(most, torch.inf)
    for part in _SHRINK:
        scale = (most * part).to(dtype).float()
        scale = torch.where(scale > 0, scale, 1.0)
        error = (weight - _round(weight, scale[:, None], bits) * scale[:, None]).square().sum(dim=1)
        better = error < least
        best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best
