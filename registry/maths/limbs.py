"""Integers in limbs of 8 bits, laid out for products of int8: the middle step from activations to an exact Gram.

Channel i of a token is the integer q_i = l + 256 m + 65536 h + 128 with l, m in [-128, 127] and |h| ≤ 8. At 16 bits,
and wherever q_i happens to fit into 16, h = 0. A further channel holds the constant 1 (l = 1, and no 128), so that the
Gram brings the moments and the count along. With r = l + 256 m + 65536 h, stacked over tokens as L, M and H of shape
(T, C),

    Σ_t r_t r_tᵀ = LᵀL + 2^8 (LᵀM + MᵀL) + 2^16 (MᵀM + LᵀH + HᵀL) + 2^24 (MᵀH + HᵀM) + 2^32 HᵀH

where the products with H need only the tokens that have an h ≠ 0, and XᵀY + YᵀX is a single product, of X above Y with
Y above X. A *plane* is one limb of all tokens and channels, int8 of shape (T, C).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int8, Int16
from torch import Tensor

from registry.maths.fixed_point import limit, power_of_two, quantise

MOST_BITS = 20
"""Bits of an integer that can be split."""

OFFSET = 128
"""What is left of q without its limbs."""

FACTORS = (1, 2**8, 2**16, 2**24, 2**32)
"""What the five sums above are multiplied by."""

MAGIC = 1.5 * 2**23
"""Added to a float32 below 2^22 it rounds to an integer, half to even, and leaves that in the lowest 22 bits."""

CHUNK = 2**18
"""Activations that are quantised at a time, so that they stay in the cache."""

Product = tuple[slice, slice, int]
"""Of planes stacked: the left factor, the right one, and the number of the sum that their product belongs to."""


@dataclass(frozen=True)
class Limbs:
    """A batch of tokens, with zeros up to a multiple of 8 tokens and of 8 channels, as CUDA's products want it.

    Attributes:
        planes: L, M, L of all tokens.
        wide: H, L, H, M, H of the tokens that have an h ≠ 0; None where there are none.
        tokens: how many tokens there are.
    """

    planes: Int8[Tensor, "3 T C"]
    wide: Int8[Tensor, "5 W C"] | None
    tokens: int

    def products(self) -> Iterator[tuple[Int8[Tensor, "K C"], Int8[Tensor, "K C"], int]]:
        """Yield the factors of each product, and the number of its sum."""
        for planes, products in ((self.planes, _OF_ALL), (self.wide, _OF_WIDE)):
            for left, right, number in products if planes is not None else ():
                yield planes[left].flatten(0, 1), planes[right].flatten(0, 1), number


_OF_ALL: tuple[Product, ...] = (
    (slice(0, 1), slice(0, 1), 0),
    (slice(0, 2), slice(1, 3), 1),
    (slice(1, 2), slice(1, 2), 2),
)
_OF_WIDE: tuple[Product, ...] = (
    (slice(0, 2), slice(1, 3), 2),
    (slice(2, 4), slice(3, 5), 3),
    (slice(0, 1), slice(0, 1), 4),
)


class Splitter:
    """Splits batches of tokens, and keeps the room for it from batch to batch."""

    def __init__(self) -> None:
        self._room: dict[str, Tensor] = {}
        self._bordered: tuple[Tensor, int, int] | None = None

    def of_activations(
        self, parts: Sequence[Float[Tensor, "_ H"]], exponents: Int16[Tensor, "H"], bits: int
    ) -> tuple[Limbs, int]:
        """Return q = round(y · 2^p) of activations, and how many had to be held (as in `quantise`).

        The limbs are overwritten by the next call.

        Raises:
            ValueError: an activation is NaN or infinite.
        """
        tokens, channels = sum(map(len, parts)), len(exponents)
        planes = self._planes(tokens, channels, exponents.device)
        scale, held, first = power_of_two(exponents).float(), 0, 0
        wide: list[tuple[Tensor, Tensor]] = []
        for pieces in in_groups(parts, self._rows(planes)):
            rows = sum(map(len, pieces))
            q, narrow = self._rounded(pieces, scale, bits)
            if q is None:
                rounded, beyond = quantise(torch.cat(pieces), exponents, bits)
                held, q = held + int(beyond.sum()), rounded.to(torch.int32)
            self._split(q, planes[:, first : first + rows, :channels])
            if not narrow:
                wide.append(self._wide_rows(q, first))
            first += rows
        return Limbs(planes, self._wide(planes, wide, channels), tokens), held

    def of_integers(self, q: Int[Tensor, "T H"], bits: int) -> Limbs:
        """Return integers within ±`limit(bits)`; the limbs are overwritten by the next call."""
        planes = self._planes(*q.shape, q.device)
        first, wide = 0, []
        for chunk in q.split(self._rows(planes)):
            self._split(chunk, planes[:, first : first + len(chunk), : q.shape[1]])
            if bits > 16:
                wide.append(self._wide_rows(chunk, first))
            first += len(chunk)
        return Limbs(planes, self._wide(planes, wide, q.shape[1]), len(q))

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return room of a shape, of any content, whose numbers stand side by side."""
        room, size = self._room.get(name), 1
        for length in shape:
            size *= length
        if room is None or room.numel() < size or room.device != device:
            room = self._room[name] = torch.empty(size, dtype=dtype, device=device)
        return room[:size].view(shape)

    def _planes(self, tokens: int, channels: int, device: torch.device) -> Tensor:
        """Return planes whose channel of ones and whose borders of zeros are set."""
        rows, width = _eights(tokens), padded(channels)
        planes = self.take("planes", (3, rows, width), torch.int8, device)
        border = self._room["planes"], tokens, channels
        if self._bordered is None or self._bordered[0] is not border[0] or self._bordered[1:] != border[1:]:
            planes[:, tokens:] = 0
            planes[:, :tokens, channels:] = 0
            planes[::2, :tokens, channels] = 1
            self._bordered = border
        return planes

    def _rows(self, planes: Tensor) -> int:
        """Return how many tokens are quantised at a time; on a GPU all, since each time costs a wait."""
        return max(1, CHUNK // planes.shape[2]) if planes.device.type == "cpu" else max(1, planes.shape[1])

    def _rounded(self, pieces: Sequence[Tensor], scale: Tensor, bits: int) -> tuple[Tensor | None, bool]:
        """Return activations quantised, in the lowest 22 bits of an int32, and whether all fit into 16 bits.

        None where one is beyond the limit, not finite, or of more digits than float32 has.
        """
        if pieces[0].dtype == torch.float64:
            return None, bits <= 16
        shape = sum(map(len, pieces)), len(scale)
        rounded = self.take("rounded", shape, torch.float32, scale.device)
        first = 0
        for piece in pieces:
            rounded[first : first + len(piece)].copy_(piece)
            first += len(piece)
        # y · 2^p is exact, so that this sum is the only rounding.
        rounded.mul_(scale).add_(MAGIC)
        least, most = float(rounded.amin()) - MAGIC, float(rounded.amax()) - MAGIC
        if not (-limit(bits) <= least and most <= limit(bits)):  # so is NaN
            return None, bits <= 16
        return rounded.view(torch.int32), -limit(16) <= least and most <= limit(16)

    def _split(self, q: Tensor, planes: Tensor) -> None:
        """Write l and m of integers into their planes; of those only the lowest 22 bits are read."""
        planes[0].copy_(q).bitwise_xor_(-128)
        shifted = self.take("shifted", tuple(q.shape), torch.int32, q.device)
        q = q if q.dtype == torch.int32 else shifted.copy_(q)
        planes[1].copy_(torch.bitwise_right_shift(q, 8, out=shifted))
        planes[2].copy_(planes[0])

    def _wide_rows(self, q: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return which tokens of a chunk have an h ≠ 0, counted from `first`, and h, of shape (tokens, H)."""
        shifted = self.take("shifted", tuple(q.shape), torch.int32, q.device)
        # The sum's bits 16 to 21 are h; those above may be anything.
        high = torch.add(q, 2**15, out=shifted).bitwise_left_shift_(10).bitwise_right_shift_(26).to(torch.int8)
        rows = high.any(dim=1).nonzero()[:, 0]
        return rows + first, high[rows]

    def _wide(self, planes: Tensor, found: Sequence[tuple[Tensor, Tensor]], channels: int) -> Tensor | None:
        count = sum(len(rows) for rows, _ in found)
        if count == 0:
            return None
        rows = torch.cat([rows for rows, _ in found])
        wide = self.take("wide", (5, _eights(count), planes.shape[2]), torch.int8, planes.device).zero_()
        wide[0, :count, :channels] = torch.cat([high for _, high in found])
        wide[1, :count] = planes[0, rows]
        wide[3, :count] = planes[1, rows]
        wide[2] = wide[4] = wide[0]
        return wide


def padded(channels: int) -> int:
    """Return C: the channels, the constant one, and zeros up to a multiple of 8, 24 or more."""
    return max(24, _eights(channels + 1))


def in_groups(parts: Sequence[Tensor], rows: int) -> Iterator[list[Tensor]]:
    """Yield the parts, in order, in groups of so many rows; the last may have fewer."""
    group: list[Tensor] = []
    room = rows
    for part in parts:
        for piece in (part[:room], *part[room:].split(rows)):
            if len(piece) == 0:
                continue
            group.append(piece)
            room -= len(piece)
            if room == 0:
                yield group
                group, room = [], rows
    if group:
        yield group


def _eights(count: int) -> int:
    return -(-count // 8) * 8
