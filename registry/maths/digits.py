"""Integers laid out for exact products of matrices: the middle step from activations to a Gram.

For products of int8 they are split into digits that fit. Channel i of a token is the integer q_i = Σ_a B^a x_a,i + o,
and a further channel holds the constant 1 (x_0 = 1, no o), so that the Gram brings the moments and the count along.
With X_a of shape (T, C) for all tokens:

    small, |q| < 2^13:   B = 128, two digits in [-64, 63], o = 64
        three squares, since X_0ᵀX_1 + X_1ᵀX_0 = (X_0 + X_1)ᵀ(X_0 + X_1) - X_0ᵀX_0 - X_1ᵀX_1 (Karatsuba), and sums of
        two such digits fit into int8
    narrow, |q| < 2^15:  B = 256, two digits in [-128, 127], o = 128
        Σ = X_0ᵀX_0 + B (X_0ᵀX_1 + X_1ᵀX_0) + B² X_1ᵀX_1
    wide, |q| < 2^19:    B = 128, digits in [-64, 63], [-64, 63] and [-32, 32], o = 0
        six squares in the same way

A group of tokens takes the first form that holds all its integers. Where that is not the small one because of a few
tokens, these are *rare*: they are handed back as integers, and the others take the small form. A *plane* is one digit,
or a sum of two. For products of float64 there is one plane, of the integers themselves.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int16, Int32, Shaped
from torch import Tensor

from registry.maths.fixed_point import limit, power_of_two, quantise

MAGIC = 1.5 * 2**23
"""Added to a float32 below 2^22 it rounds to an integer, half to even, and leaves that in the lowest 22 bits."""

CHUNK = 2**18
"""Activations that are quantised at a time, so that they stay in the cache."""

RARE = 16
"""Tokens beyond the small form are rare where at most one in so many of a group is."""


@dataclass(frozen=True)
class Form:
    """Splitting of integers.

    Attributes:
        bits: of the integers, at most.
        planes: how many there are.
        ones: those that hold a 1 for the constant.
        products: (left plane, right plane, sum that their product belongs to).
        factors: what each sum is multiplied by.
        offset: o.
        dtype: of the planes.
    """

    bits: int
    planes: int
    ones: tuple[int, ...]
    products: tuple[tuple[int, int, int], ...]
    factors: tuple[int, ...]
    offset: int
    dtype: torch.dtype = torch.int8


SMALL = Form(
    bits=14,
    planes=3,  # X_0, X_1, X_0 + X_1
    ones=(0, 2),
    products=((0, 0, 0), (1, 1, 1), (2, 2, 2)),
    factors=(1 - 2**7, 2**14 - 2**7, 2**7),
    offset=64,
)
NARROW = Form(
    bits=16,
    planes=2,
    ones=(0,),
    products=((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)),
    factors=(1, 2**8, 2**16),
    offset=128,
)
WIDE = Form(
    bits=20,
    planes=6,  # X_0, X_1, X_2, X_0 + X_1, X_0 + X_2, X_1 + X_2
    ones=(0, 3, 4),
    products=tuple((plane, plane, plane) for plane in range(6)),
    factors=(1 - 2**7 - 2**14, 2**14 - 2**7 - 2**21, 2**28 - 2**14 - 2**21, 2**7, 2**14, 2**21),
    offset=0,
)
WHOLE = Form(bits=20, planes=1, ones=(0,), products=((0, 0, 0),), factors=(1,), offset=0, dtype=torch.float64)


@dataclass
class Digits:
    """Tokens of one form.

    Attributes:
        planes: has zeros up to a multiple of 8 tokens and of 8 channels, as CUDA wants it, and in place of rare tokens.
        rows: of the planes that are taken: tokens, and rare ones.
        tokens: without the rare ones.
    """

    form: Form
    planes: Shaped[Tensor, "planes T C"]
    rows: int = 0
    tokens: int = 0


class Splitter:
    """Splits batches of tokens into a form, by default the narrowest of digits; keeps the room from batch to batch."""

    def __init__(self) -> None:
        self._room: dict[str, Tensor] = {}
        self._bordered: dict[str, tuple[Tensor, tuple[int, ...], int]] = {}

    def of_activations(
        self, parts: Sequence[Float[Tensor, "_ H"]], exponents: Int16[Tensor, "H"], bits: int, form: Form | None = None
    ) -> tuple[list[Digits], list[Int32[Tensor, "_ H"]], int]:
        """Return q = round(y · 2^p) of activations: digits, rare tokens, how many had to be held (as in `quantise`).

        The digits are overwritten by the next call (ValueError: an activation is NaN or infinite).
        """
        size = sum(map(len, parts)), len(exponents)
        found: dict[Form, Digits] = {}
        rare: list[Tensor] = []
        scale, held = power_of_two(exponents).float(), 0
        for pieces in in_groups(parts, _rows(exponents)):
            q, rows, most = self._rounded(pieces, scale)
            if not most <= limit(bits):  # so is NaN
                rounded, beyond = quantise(torch.cat(pieces), exponents, bits)
                held, q, most = held + int(beyond.sum()), rounded.to(torch.int32), limit(bits)
            elif form is None and most > limit(SMALL.bits):
                apart = (rows > limit(SMALL.bits)).nonzero()[:, 0]
                if len(apart) * RARE <= len(q):
                    rare.append(q[apart].bitwise_left_shift_(10).bitwise_right_shift_(10))
                    self._put(found, size, q, SMALL, apart)
                    continue
            self._put(found, size, q, form or _narrowest(int(most)))
        return self._closed(found), rare, held

    def of_rare(self, q: Int32[Tensor, "T H"], bits: int) -> list[Digits]:
        """Return rare tokens as `of_activations` hands them back; the digits are overwritten by the next call."""
        found: dict[Form, Digits] = {}
        for chunk in q.split(_rows(q[0])):
            most = limit(bits) if bits <= NARROW.bits else int(chunk.abs().max())
            self._put(found, (len(q), q.shape[1]), chunk, _narrowest(most))
        return self._closed(found)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return room of a shape, of any content, whose numbers stand side by side."""
        room, size = self._room.get(name), math.prod(shape)
        if room is None or room.numel() < size or room.device != device:
            room = self._room[name] = torch.empty(size, dtype=dtype, device=device)
        return room[:size].view(shape)

    def _rounded(
        self, pieces: Sequence[Float[Tensor, "_ H"]], scale: Float[Tensor, "H"]
    ) -> tuple[Int32[Tensor, "T H"], Float[Tensor, "T"], float]:
        """Return activations quantised, in the lowest 22 bits, the largest magnitude of each row, and of all.

        The last is NaN or infinite where one activation is, or where they have more digits than float32.
        """
        shape = sum(map(len, pieces)), len(scale)
        rounded = self.take("rounded", shape, torch.float32, scale.device)
        integers = rounded.view(torch.int32)
        if pieces[0].dtype == torch.float64:
            return integers, rounded[:, 0], math.inf
        first = 0
        for piece in pieces:
            rounded[first : first + len(piece)].copy_(piece)
            first += len(piece)
        # y · 2^p is exact, so that this sum is the only rounding.
        torch.addcmul(scale.new_full((), MAGIC), rounded, scale, out=rounded)
        # Sums and differences of such numbers are exact.
        rows = torch.maximum(rounded.amax(dim=1), 2 * MAGIC - rounded.amin(dim=1)).sub_(MAGIC)
        return integers, rows, float(rows.max())

    def _put(
        self, found: dict[Form, Digits], size: tuple[int, int], q: Tensor, form: Form, apart: Tensor | None = None
    ) -> None:
        """Append integers, of which only the lowest 22 bits are read, to those of their form, without the rows `apart`.

        Zeros take the place of those rows: a number of rows that varied would have kernels compiled again and again.
        """
        digits = found.get(form)
        if digits is None:
            digits = found[form] = Digits(form, self._planes(form, *size, q.device))
        planes, channels = digits.planes[:, digits.rows : digits.rows + len(q)], q.shape[1]
        for plane in form.ones:
            planes[plane, :, channels] = 1
        fill = {SMALL: self._small, NARROW: self._narrow, WIDE: self._wide, WHOLE: self._whole}[form]
        fill(q, planes[..., :channels])
        digits.rows += len(q)
        digits.tokens += len(q)
        if apart is not None:
            planes[:, apart] = 0
            digits.tokens -= len(apart)

    def _planes(self, form: Form, tokens: int, channels: int, device: torch.device) -> Tensor:
        """Return planes whose border of channels is zero."""
        name = f"planes of {form.bits} bits, {form.dtype}"
        planes = self.take(name, (form.planes, _eights(tokens), padded(channels)), form.dtype, device)
        known, border = self._bordered.get(name), (self._room[name], tuple(planes.shape), channels)
        if known is None or known[0] is not border[0] or known[1:] != border[1:]:
            planes[..., channels:] = 0
            self._bordered[name] = border
        return planes

    def _closed(self, found: dict[Form, Digits]) -> list[Digits]:
        for digits in found.values():
            rows = _eights(digits.rows)
            digits.planes[:, digits.rows : rows] = 0
            digits.planes = digits.planes[:, :rows]
        return list(found.values())

    def _small(self, q: Tensor, planes: Tensor) -> None:
        planes[0].copy_(q).bitwise_and_(127).sub_(64)
        planes[1].copy_(self._shifted(q, 7))
        torch.add(planes[0], planes[1], out=planes[2])

    def _narrow(self, q: Tensor, planes: Tensor) -> None:
        planes[0].copy_(q).bitwise_xor_(-128)
        planes[1].copy_(self._shifted(q, 8))

    def _shifted(self, q: Tensor, bits: int) -> Tensor:
        shifted = self.take("shifted", tuple(q.shape), torch.int32, q.device)
        return torch.bitwise_right_shift(q, bits, out=shifted)

    def _wide(self, q: Tensor, planes: Tensor) -> None:
        moved = torch.add(q, 64 + 64 * 128, out=self.take("shifted", tuple(q.shape), torch.int32, q.device))
        planes[0].copy_(moved).bitwise_and_(127).sub_(64)
        planes[1].copy_(moved.bitwise_right_shift_(7)).bitwise_and_(127).sub_(64)
        planes[2].copy_(moved.bitwise_right_shift_(7))
        for plane, (one, other) in zip((3, 4, 5), ((0, 1), (0, 2), (1, 2)), strict=True):
            torch.add(planes[one], planes[other], out=planes[plane])

    def _whole(self, q: Tensor, planes: Tensor) -> None:
        moved = self.take("shifted", tuple(q.shape), torch.int32, q.device)
        # The highest 10 bits may be of a float32.
        planes[0].copy_(torch.bitwise_left_shift(q, 10, out=moved).bitwise_right_shift_(10))


def _narrowest(most: int) -> Form:
    return next(form for form in (SMALL, NARROW, WIDE) if most <= limit(form.bits))


def _rows(channels: Tensor) -> int:
    """Return how many tokens are quantised at a time; on a GPU all, since each time costs a wait."""
    return max(1, CHUNK // max(1, len(channels))) if channels.device.type == "cpu" else 2**31


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
