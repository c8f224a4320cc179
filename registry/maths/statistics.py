"""Sufficient statistics of one expert at one site and layer: exact, additive, comparable bit for bit; sums of several.

With x_t ∈ R^H the activation of token t, x̃ = [x; 1] and q̃ its fixed-point form (DUME eq. 5 and 7):

    G = Σ_t q̃_t q̃_tᵀ  =  [ A  s ]     A (H, H) Gram · s (H,) moment = the expert's own column of b · n token count
                          [ sᵀ n ]

One-hot targets make b the stack of the moments, so this one symmetric matrix of integers carries all that least squares
needs. Statistics over the same scales add up; `Statistics.zero` adds nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int16, Int64
from torch import Tensor

from registry.maths.fixed_point import NORM_BITS, power_of_two, real_value
from registry.maths.gram import GramAccumulator, require_room

_TILE = 64
"""Rows that are added or mirrored at once, few enough to stay in the cache."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """The Gram, moment and count of one site and layer.

    Attributes:
        matrix: G, symmetric int64 of shape (H + 1, H + 1), in fixed point.
        exponents: p of shape (H,): channel i stands for integers of 2^-p_i.
        saturated: activations that exceeded their bound and were held at it; 0 wherever the bound is a proof.
    """

    matrix: Int64[Tensor, "H1 H1"]
    exponents: Int16[Tensor, "H"]
    saturated: int = 0

    def __post_init__(self) -> None:
        size = self.exponents.numel() + 1
        if self.matrix.shape != (size, size):
            raise ValueError(f"a matrix of shape {list(self.matrix.shape)} does not go with {size - 1} channels")

    @classmethod
    def zero(cls, exponents: Int16[Tensor, "H"]) -> "Statistics":
        """Return the statistics of no token."""
        size = exponents.numel() + 1
        return cls(torch.zeros((size, size), dtype=torch.int64, device=exponents.device), exponents)

    @classmethod
    def of(
        cls,
        x: Float[Tensor, "T H"],
        exponents: Int16[Tensor, "H"],
        keep: Bool[Tensor, "T"] | None = None,
        bits: int = NORM_BITS,
    ) -> "Statistics":
        """Return the statistics of activations in integers of so many bits; rows where `keep` is False do not count.

        (ValueError: an activation that counts is NaN or infinite, or the sums leave 64-bit integers.)
        """
        sums = GramAccumulator(exponents, bits)
        sums.add([x if keep is None else x[keep]])
        return cls(sums.matrix(), exponents, sums.saturated)

    def __add__(self, other: "Statistics") -> "Statistics":
        if not torch.equal(self.exponents, other.exponents):
            raise ValueError(
                "statistics over different scales cannot be combined: they were taken on different weights"
            )
        require_room(self.matrix, other.matrix)
        return Statistics(self.matrix + other.matrix, self.exponents, self.saturated + other.saturated)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return (
            torch.equal(self.exponents, other.exponents)
            and torch.equal(self.matrix, other.matrix)
            and self.saturated == other.saturated
        )

    @property
    def count(self) -> int:
        """n: the tokens that were counted."""
        return int(self.matrix[-1, -1])

    @property
    def gram(self) -> Float[Tensor, "H H"]:
        """A in real units, float64."""
        return real_value(self.matrix[:-1, :-1], self.exponents)

    @property
    def moment(self) -> Float[Tensor, "H"]:
        """s in real units, float64."""
        return self.matrix[:-1, -1].double() * power_of_two(-self.exponents)

    def packed(self) -> Int64[Tensor, "P"]:
        """Return the upper triangle of G row by row, P = (H + 1)(H + 2)/2 integers: what is stored."""
        return torch.cat([self.matrix[row, row:] for row in range(len(self.matrix))])


@dataclass(frozen=True, eq=False)
class PackedStatistics:
    """Statistics as they are stored: half the size, and enough for sums of Grams.

    `packed` is the upper triangle of G row by row, P = (H + 1)(H + 2)/2 integers; the others are as in `Statistics`.
    """

    packed: Int64[Tensor, "P"]
    exponents: Int16[Tensor, "H"]
    saturated: int = 0

    def __post_init__(self) -> None:
        size = self.exponents.numel() + 1
        if self.packed.numel() != size * (size + 1) // 2:
            raise ValueError(f"{self.packed.numel():,} packed values do not go with {size - 1} channels")

    def unpacked(self) -> Statistics:
        """Return the whole matrix."""
        size = self.exponents.numel() + 1
        matrix = torch.empty((size, size), dtype=torch.int64)
        rows, values, begin = matrix.numpy(), self.packed.numpy(), 0
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            for row in range(start, stop):
                end = begin + size - row
                rows[row, row:] = values[begin:end]
                rows[row:stop, row] = values[begin : begin + stop - row]
                begin = end
            rows[stop:, start:stop] = rows[start:stop, stop:].T
        return Statistics(matrix, self.exponents, self.saturated)

    @property
    def count(self) -> int:
        """n: the tokens that were counted."""
        return int(self.packed[-1])

    @property
    def moment(self) -> Float[Tensor, "H"]:
        """s in real units, float64."""
        size = self.exponents.numel()
        ends = self._starts() + size - torch.arange(size)  # each row's last value
        return self.packed[ends].double() * power_of_two(-self.exponents)

    @property
    def diagonal(self) -> Float[Tensor, "H"]:
        """The diagonal of A in real units, float64."""
        scale = power_of_two(-self.exponents)
        return self.packed[self._starts()].double() * scale * scale

    def add_upper_gram_to(self, total: Float[Tensor, "H H"], weight: float, *, first: bool) -> None:
        """Add the upper triangle of `weight` · A to that of `total`, or with `first` put it there.

        The bits are those of adding the whole A. Rows go in tiles, so that nothing of the size of A is made.
        """
        scale, size, values = power_of_two(-self.exponents), len(total), self.packed.numpy()
        begins = self._starts().tolist()
        room = torch.zeros((_TILE, size), dtype=torch.float64)
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            tile = room[: stop - start, : size - start]
            rows = tile.numpy()
            for row in range(start, stop):
                rows[row - start, row - start :] = values[begins[row] : begins[row] + size - row]
            tile.mul_(scale[start:stop, None]).mul_(scale[None, start:])
            if first:
                torch.mul(tile, weight, out=total[start:stop, start:])
            else:
                total[start:stop, start:].add_(tile, alpha=weight)

    @property
    def gram(self) -> Float[Tensor, "H H"]:
        """A in real units, float64."""
        size = self.exponents.numel()
        total = torch.empty((size, size), dtype=torch.float64)
        self.add_upper_gram_to(total, 1.0, first=True)
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            block = total[start:stop, start:stop]
            block.copy_(block.triu() + block.triu(1).T)
            total[stop:, start:stop] = total[start:stop, stop:].T
        return total

    def _starts(self) -> Int64[Tensor, "H"]:
        """Return where each row of A begins among the packed values."""
        size = self.exponents.numel() + 1
        row = torch.arange(size - 1)
        return row * size - row * (row - 1) // 2


@dataclass(frozen=True, eq=False)
class GramSum:
    """Σ_e ω_e A_e, of which the upper triangle alone counts, and [ω_1 s_1 … ω_E s_E], in real units, float64."""

    gram: Float[Tensor, "H H"]
    moments: Float[Tensor, "H E"]


def gram_sum(statistics: Iterable[PackedStatistics], weights: Sequence[float]) -> GramSum:
    """Return the sum over members, added in the order given: callers give name order.

    Scales may differ. Statistics are taken one at a time, so that only one need be in memory (ValueError: no member).
    """
    gram, moments = None, []
    for item, weight in zip(statistics, weights, strict=True):
        first = gram is None
        if gram is None:
            gram = torch.zeros((item.exponents.numel(),) * 2, dtype=torch.float64)
        item.add_upper_gram_to(gram, weight, first=first)  # Cholesky reads no more
        moments.append(item.moment * weight)
    if gram is None:
        raise ValueError("a router needs at least one expert")
    return GramSum(gram, torch.stack(moments, dim=1))
