"""Sufficient statistics of one expert at one site and layer: exact, additive, comparable bit for bit.

With x_t ∈ R^H the activation of token t, x̃ = [x; 1] and q̃ its fixed-point form (DUME eq. 5 and 7):

    G = Σ_t q̃_t q̃_tᵀ  =  [ A  s ]     A (H, H) Gram · s (H,) moment = the expert's own column of b · n token count
                          [ sᵀ n ]

One-hot targets make b the stack of the moments, so this one symmetric matrix of integers carries all that least squares
needs. Statistics over the same scales add up; `Statistics.zero` adds nothing.
"""

import hashlib
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
        """Return the statistics of activations `x`, one row a token; rows where `keep` is False (padding) are left out.

        Args:
            x: the activations.
            exponents: p.
            keep: which rows count; None for all.
            bits: of the integers.

        Raises:
            ValueError: an activation that counts is NaN or infinite, or the sums leave 64-bit integers.
        """
        sums = GramAccumulator(exponents, bits)
        sums.add([x if keep is None else x[keep]])
        return cls(sums.matrix(), exponents, sums.saturated)

    def __add__(self, other: "Statistics") -> "Statistics":
        self._require_same_scales(other)
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

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def count(self) -> int:
        """n: the tokens that were counted."""
        return int(self.matrix[-1, -1])

    @property
    def gram(self) -> Float[Tensor, "H H"]:
        """A in real units, float64."""
        return real_value(self.matrix[:-1, :-1], self.exponents)

    def add_upper_gram_to(self, total: Float[Tensor, "H H"], weight: float, *, first: bool) -> None:
        """Add the upper triangle of `weight` · A to that of `total`, or with `first` put it there.

        The bits are those of adding `gram`. Most of what is below the diagonal is left out, and nothing of the size of
        A is made beside the two: rows go in tiles.
        """
        scale, size = power_of_two(-self.exponents), len(total)
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            _add_tile(total, self.matrix[start:stop, start:-1].double(), scale, start, weight, first=first)

    @property
    def moment(self) -> Float[Tensor, "H"]:
        """s in real units, float64."""
        return self.matrix[:-1, -1].double() * power_of_two(-self.exponents)

    @property
    def digest(self) -> str:
        """SHA-256 over scales, matrix and saturation count (64 hexadecimal digits)."""
        state = hashlib.sha256(f"statistics {self.exponents.numel()} {self.saturated}\n".encode())
        for tensor in (self.exponents, self.packed()):
            state.update(tensor.cpu().contiguous().numpy().data)
        return state.hexdigest()

    def packed(self) -> Int64[Tensor, "P"]:
        """Return the upper triangle of G row by row, P = (H + 1)(H + 2)/2 integers: what is stored."""
        return torch.cat([self.matrix[row, row:] for row in range(len(self.matrix))])

    @classmethod
    def unpack(cls, packed: Int64[Tensor, "P"], exponents: Int16[Tensor, "H"], saturated: int = 0) -> "Statistics":
        """Return the statistics whose `packed()` is `packed`.

        Raises:
            ValueError: the length of `packed` does not go with `exponents`.
        """
        size = exponents.numel() + 1
        if packed.numel() != size * (size + 1) // 2:
            raise ValueError(f"{packed.numel():,} packed values do not go with {size - 1} channels")
        matrix = torch.empty((size, size), dtype=torch.int64)
        rows, values, begin = matrix.numpy(), packed.numpy(), 0
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            for row in range(start, stop):
                end = begin + size - row
                rows[row, row:] = values[begin:end]
                rows[row:stop, row] = values[begin : begin + stop - row]
                begin = end
            rows[stop:, start:stop] = rows[start:stop, stop:].T
        return cls(matrix, exponents, saturated)

    def _require_same_scales(self, other: "Statistics") -> None:
        if not torch.equal(self.exponents, other.exponents):
            raise ValueError(
                "statistics over different scales cannot be combined: they were taken on different weights"
            )


@dataclass(frozen=True, eq=False)
class PackedStatistics:
    """Statistics as they are stored: half the size, and enough for sums of Grams.

    Attributes:
        packed: the upper triangle of G row by row, P = (H + 1)(H + 2)/2 integers.
        exponents: p of shape (H,).
        saturated: as in `Statistics`.
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
        return Statistics.unpack(self.packed, self.exponents, self.saturated)

    @property
    def count(self) -> int:
        """n: the tokens that were counted."""
        return int(self.packed[-1])

    @property
    def moment(self) -> Float[Tensor, "H"]:
        """s in real units, float64."""
        return self.packed[self._ends()].double() * power_of_two(-self.exponents)

    @property
    def diagonal(self) -> Float[Tensor, "H"]:
        """The diagonal of A in real units, float64."""
        scale = power_of_two(-self.exponents)
        return self.packed[self._starts()].double() * scale * scale

    def add_upper_gram_to(self, total: Float[Tensor, "H H"], weight: float, *, first: bool) -> None:
        """Add the upper triangle of `weight` · A to that of `total` (as `Statistics.add_upper_gram_to`)."""
        scale, size, values = power_of_two(-self.exponents), len(total), self.packed.numpy()
        begins = self._starts().tolist()
        room = torch.zeros((_TILE, size), dtype=torch.float64)
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            tile = room[: stop - start, : size - start]
            rows = tile.numpy()
            for row in range(start, stop):
                rows[row - start, row - start :] = values[begins[row] : begins[row] + size - row]
            _add_tile(total, tile, scale, start, weight, first=first)

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

    def _ends(self) -> Int64[Tensor, "H"]:
        """Return where each row's last value, its moment, is among the packed values."""
        size = self.exponents.numel() + 1
        return self._starts() + (size - 1 - torch.arange(size - 1))


def _add_tile(
    total: Float[Tensor, "H H"],
    tile: Float[Tensor, "r c"],
    scale: Float[Tensor, "H"],
    start: int,
    weight: float,
    *,
    first: bool,
) -> None:
    """Add r rows of integers, from their diagonal on, in real units to `total`; the tile is overwritten."""
    rows = slice(start, start + len(tile))
    tile.mul_(scale[rows, None]).mul_(scale[None, start:])
    if first:
        torch.mul(tile, weight, out=total[rows, start:])
    else:
        total[rows, start:].add_(tile, alpha=weight)
