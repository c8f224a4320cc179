"""Integers in limbs of 8 bits, laid out for products of int8: the middle step from activations to an exact Gram.

Channel i of a token is the integer q_i = Σ_a B^a l_a + o, with limbs l_a that fit into int8:

    16 bits:  B = 256, two limbs of [-128, 127],               o = 128
    20 bits:  B = 128, limbs of [-64, 63], [-64, 63], [-32, 32], o = 0

A further channel holds the constant 1 (lowest limb 1, o = 0), so that the Gram brings the moments and the count along.
With r = q - o, Σ_t r_t r_tᵀ is a sum of symmetric int8 products P with whole factors, and all limbs of a token fit:

    16 bits:  P_00 + B (P_01 + P_10) + B² P_11               the middle one as a single product of stacked planes
    20 bits:  by Karatsuba's identity l_a l_bᵀ + l_b l_aᵀ = (l_a + l_b)(l_a + l_b)ᵀ - l_a l_aᵀ - l_b l_bᵀ: six squares,
              since sums of two such limbs still fit into int8

A *plane* is one limb of all tokens and channels, int8 of shape (T, C).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int8, Int16
from torch import Tensor

from registry.maths.fixed_point import limit, power_of_two, quantise

MAGIC = 1.5 * 2**23
"""Added to a float32 below 2^22 it rounds to an integer, half to even, and leaves that in the lowest bits."""

CHUNK = 2**18
"""Activations that are quantised at a time, so that they stay in the cache."""

ALIGNMENT = 32
"""Channels are filled up with zeros to a multiple of this; of tokens, to a multiple of 8: what CUDA's products need."""


@dataclass(frozen=True)
class Scheme:
    """How integers are split.

    Attributes:
        planes: int8 planes that a token takes.
        products: (planes of the left factor, of the right one, its whole factor); planes are stacked token by token.
        offset: o.
    """

    planes: int
    products: tuple[tuple[slice, slice, int], ...]
    offset: int


_TWO = Scheme(
    planes=3,  # l0, l1, l0
    products=((slice(0, 1), slice(0, 1), 1), (slice(0, 2), slice(1, 3), 256), (slice(1, 2), slice(1, 2), 256**2)),
    offset=128,
)
_THREE = Scheme(
    planes=6,  # l0, l1, l2, l0 + l1, l0 + l2, l1 + l2
    products=tuple(
        (slice(plane, plane + 1), slice(plane, plane + 1), factor)
        for plane, factor in enumerate(
            (1 - 128 - 128**2, 128**2 - 128 - 128**3, 128**4 - 128**3 - 128**2, 128, 128**2, 128**3)
        )
    ),
    offset=0,
)


def scheme(bits: int) -> Scheme | None:
    """Return how integers of so many bits are split, or None for more than 20."""
    return _TWO if bits <= 16 else _THREE if bits <= 20 else None


class Planes:
    """Room for the planes of a batch of tokens; kept from batch to batch, so that it is made once."""

    def __init__(self) -> None:
        self._room: dict[str, Tensor] = {}

    def of_activations(
        self, parts: Sequence[Float[Tensor, "_ H"]], exponents: Int16[Tensor, "H"], bits: int
    ) -> tuple[Int8[Tensor, "planes T C"], int]:
        """Return the planes of q = round(y · 2^p) for activations, and how many had to be held (as in `quantise`).

        The planes are overwritten by the next call.

        Raises:
            ValueError: an activation is NaN or infinite.
        """
        planes = self._planes(sum(map(len, parts)), len(exponents), bits, exponents.device)
        held, first = 0, 0
        for part in parts:
            for chunk in self._chunks(part):
                held += self._activations(chunk, exponents, bits, planes[:, first : first + len(chunk)])
                first += len(chunk)
        return planes, held

    def of_integers(self, q: Int[Tensor, "T H"], bits: int) -> Int8[Tensor, "planes T C"]:
        """Return the planes of integers within ±`limit(bits)`; they are overwritten by the next call."""
        planes = self._planes(*q.shape, bits, q.device)
        first = 0
        for chunk in self._chunks(q):
            self._split(chunk, bits, planes[:, first : first + len(chunk)])
            first += len(chunk)
        return planes

    def take(self, name: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return room for so many numbers, of any content."""
        room = self._room.get(name)
        if room is None or room.numel() < size or room.device != device or room.dtype != dtype:
            room = self._room[name] = torch.empty(size, dtype=dtype, device=device)
        return room[:size]

    def _planes(self, tokens: int, channels: int, bits: int, device: torch.device) -> Tensor:
        """Return planes whose channel of ones and whose padding are set."""
        split = scheme(bits)
        if split is None:
            raise ValueError(f"integers of {bits} bits cannot be split")
        rows, width = -(-tokens // 8) * 8, padded(channels)
        planes = self.take("planes", split.planes * rows * width, torch.int8, device).view(split.planes, rows, width)
        planes[:, tokens:] = 0
        planes[:, :tokens, channels:] = 0
        for plane in (0, 2) if split is _TWO else (0, 3, 4):
            planes[plane, :tokens, channels] = 1
        return planes

    def _chunks(self, x: Tensor) -> Sequence[Tensor]:
        # On a GPU every chunk would cost a wait.
        return x.split(max(1, CHUNK // max(1, x.shape[1]))) if x.device.type == "cpu" else (x,)

    def _activations(self, y: Tensor, exponents: Tensor, bits: int, planes: Tensor) -> int:
        """Quantise and split a chunk; return how many activations had to be held."""
        if y.dtype != torch.float64 and len(y):
            rounded = self.take("rounded", y.numel(), torch.float32, y.device).view(y.shape)
            # y · 2^p is exact, so that this sum is the only rounding.
            torch.addcmul(rounded.new_tensor(MAGIC), y, power_of_two(exponents).float(), out=rounded)
            # NaN fails both comparisons.
            if bool((rounded.amin() >= MAGIC - limit(bits)) & (rounded.amax() <= MAGIC + limit(bits))):
                self._split(rounded.view(torch.int32), bits, planes)
                return 0
        q, held = quantise(y, exponents, bits)
        self._split(q.to(torch.int32), bits, planes)
        return int(held.sum())

    def _split(self, q: Tensor, bits: int, planes: Tensor) -> None:
        """Write the limbs of integers into their planes; of those numbers only the lowest 22 bits are read."""
        low, channels = planes[..., : q.shape[1]], q.shape[1]
        if bits <= 16:
            low[0].copy_(q).bitwise_xor_(-128)
            low[1].copy_(self._shifted(q, 8))
            low[2].copy_(low[0])
            return
        moved = self._shifted(q, 0).add_(64 + 64 * 128)
        low[0].copy_(moved).bitwise_and_(127).sub_(64)
        low[1].copy_(moved.bitwise_right_shift_(7)).bitwise_and_(127).sub_(64)
        low[2].copy_(moved.bitwise_right_shift_(7))
        for plane, (one, other) in zip((3, 4, 5), ((0, 1), (0, 2), (1, 2)), strict=True):
            torch.add(planes[one, :, :channels], planes[other, :, :channels], out=low[plane])

    def _shifted(self, q: Tensor, by: int) -> Tensor:
        """Return q >> by, int32."""
        moved = self.take("shifted", q.numel(), torch.int32, q.device).view(q.shape)
        return moved.copy_(q) if by == 0 else torch.bitwise_right_shift(q, by, out=moved)


def padded(channels: int) -> int:
    """Return C: the channels, the constant one, and zeros up to a multiple of `ALIGNMENT`."""
    return -(-(channels + 1) // ALIGNMENT) * ALIGNMENT
