"""Matrices in few bits: rounded to the nearest, or by GPTQ with the Gram of their inputs.

W (O, I) becomes numbers of few bits q (O, I) and a scale for each row and group of g columns, s (O, I / g): Ŵ = s q.
Rounding to the nearest makes each weight's own error small. GPTQ (Frantar et al. 2022, arXiv 2210.17323, Algorithm 1)
makes that of the outputs small, tr((W - Ŵ) A (W - Ŵ)ᵀ) with A = Σ_t x_t x_tᵀ: column by column, it adds to the columns
that are still to be rounded what makes up for the error so far.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

_DAMPING = 0.01
"""Part of the mean of A's diagonal that is added to it (section 4 of that paper)."""

_SHRINK = (1.0, 0.9375, 0.875, 0.78, 0.7)
"""Parts of the largest weight of a group that may become its largest integer; the best one is taken."""


@dataclass(frozen=True)
class Grid:
    """The numbers that a weight may become, times a scale: of a dtype, from the least to the largest."""

    dtype: torch.dtype
    least: float
    largest: float

    @classmethod
    def integers(cls, bits: int) -> "Grid":
        """Return the integers of 2 to 8 bits, from -2^(b-1) to 2^(b-1) - 1."""
        return cls(torch.int8, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)

    @classmethod
    def float8(cls) -> "Grid":
        """Return the finite numbers of float8 with 4 bits of exponent and 3 of mantissa (e4m3fn)."""
        most = torch.finfo(torch.float8_e4m3fn).max
        return cls(torch.float8_e4m3fn, -most, most)

    def round(self, numbers: Float[Tensor, "*S"]) -> Shaped[Tensor, "*S"]:
        """Return the nearest numbers of the grid; halfway between two, the even one."""
        whole = numbers if self.dtype.is_floating_point else numbers.round()
        return whole.clamp(self.least, self.largest).to(self.dtype)


@dataclass(frozen=True)
class Rounded:
    """A matrix in few bits: numbers of a grid, and their scales in the dtype that is stored."""

    numbers: Shaped[Tensor, "O I"]
    scales: Float[Tensor, "O G"]

    @property
    def weights(self) -> Float[Tensor, "O I"]:
        """Ŵ in float32."""
        group = self.numbers.shape[1] // self.scales.shape[1]
        return self.numbers.float() * self.scales.float().repeat_interleave(group, dim=1)


def nearest(weight: Float[Tensor, "O I"], grid: Grid, group: int, dtype: torch.dtype) -> Rounded:
    """Return a matrix rounded to the nearest; `group` divides I, and scales are of `dtype`."""
    parts = weight.float().unflatten(1, (-1, group))
    scales = torch.stack([_scale(parts[:, number], grid, dtype) for number in range(parts.shape[1])], dim=1)
    return Rounded(grid.round(parts / scales[..., None]).flatten(1), scales.to(dtype))


def gptq(
    weight: Float[Tensor, "O I"], factor: Float[Tensor, "I I"], grid: Grid, group: int, dtype: torch.dtype
) -> Rounded:
    """Return a matrix rounded by GPTQ; the factor is that of its inputs, and the rest as in `nearest`.

    Time grows with O I².
    """
    rest = weight.float().clone()
    numbers, scales = torch.empty_like(rest, dtype=grid.dtype), []
    for begin in range(0, rest.shape[1], group):
        end = begin + group
        block, own = rest[:, begin:end], factor[begin:end, begin:end]
        scale, errors = _scale(block, grid, dtype), torch.empty_like(block)
        for at in range(group):
            column = block[:, at]
            rounded = grid.round(column / scale)
            numbers[:, begin + at] = rounded
            errors[:, at] = (column - rounded.float() * scale) / own[at, at]
            block[:, at:] -= torch.outer(errors[:, at], own[at, at:])
        rest[:, end:] -= errors @ factor[begin:end, end:]
        scales.append(scale)
    return Rounded(numbers, torch.stack(scales, dim=1).to(dtype))


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


def _scale(weight: Float[Tensor, "O g"], grid: Grid, dtype: torch.dtype) -> Float[Tensor, "O"]:
    """Return the scale of each row in float32, as `dtype` holds it: of `_SHRINK` the one of the least squared error."""
    most = weight.abs().amax(dim=1) / grid.largest
    best, least = torch.ones_like(most), torch.full_like(most, torch.inf)
    for part in _SHRINK:
        scale = (most * part).to(dtype).float()
        scale = torch.where(scale > 0, scale, 1.0)
        error = (weight - grid.round(weight / scale[:, None]).float() * scale[:, None]).square().sum(dim=1)
        better = error < least
        best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best
