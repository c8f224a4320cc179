"""Running sums Σ_t q̃_t q̃_tᵀ of integers, exact on every path: by int8 limbs where a device has them, else in float64.

int32 holds the sums of products of limbs (`limbs`) for `PENDING` tokens. They are kept apart and folded into 64-bit
integers when that many are reached, or when the sum is asked for, so that a batch costs little beyond its products.
All are symmetric, and only what is on and above the diagonal is computed, in panels of rows.
"""

from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Float, Int, Int8, Int16, Int64
from torch import Tensor

from registry.maths.fixed_point import NORM_BITS, quantise
from registry.maths.limbs import Planes, Scheme, scheme

EXACT_BITS = 53
"""A float64 product of matrices is exact while its sums stay below 2^53."""

OVERFLOW = 2.0**62
"""No entry of G may reach this; the diagonal tells, since it is where a Gram is largest."""

PENDING = 2**16 - 1
"""Tokens whose products of limbs int32 can hold: each adds up to 2 · 2^14 in magnitude."""

AT_ONCE = 2**13
"""Tokens that are split at a time."""

PANEL = {"cpu": 256, "cuda": 2048}
"""Rows of a panel: fewer save work at the diagonal, more use the device better."""


class GramSum:
    """G of one site and layer while tokens are still being added; a mutable `Statistics`.

    An addition that does not return leaves a sum that must not be used.
    """

    def __init__(
        self,
        exponents: Int16[Tensor, "H"],
        bits: int = NORM_BITS,
        planes: Planes | None = None,
    ) -> None:
        """Begin a sum.

        Args:
            exponents: p.
            bits: of the integers.
            planes: room that several sums may share, one at a time.
        """
        self.exponents, self.bits, self.saturated = exponents, bits, 0
        self._planes = planes or Planes()
        self._total: Tensor | None = None
        self._folded = 0
        split = scheme(bits)
        self._split: Scheme | None = split if split and has_int8(exponents.device.type) else None
        self._panels: list[list[Tensor]] = []
        self._pending = 0

    @property
    def count(self) -> int:
        """The tokens that were counted, or the sum of their weights."""
        return self._folded + self._pending

    def add(self, parts: Sequence[Float[Tensor, "_ H"]]) -> None:
        """Add tokens, one row each.

        Raises:
            ValueError: an activation is NaN or infinite, or the sums leave 64-bit integers.
        """
        for pieces in _pieces(parts):
            if self._split is None:
                q, held = quantise(torch.cat(pieces), self.exponents, self.bits)
                self.include(float64_gram(q, self.bits), int(held.sum()))
                continue
            planes, held_here = self._planes.of_activations(pieces, self.exponents, self.bits)
            self._add(planes, sum(map(len, pieces)))
            self.saturated += held_here

    def add_integers(self, q: Int[Tensor, "T H"]) -> None:
        """Add integers within ±`limit(bits)`, one row a token.

        Raises:
            ValueError: the sums leave 64-bit integers.
        """
        for piece in q.split(AT_ONCE):
            if self._split is None:
                self.include(float64_gram(piece.double(), self.bits))
            else:
                self._add(self._planes.of_integers(piece, self.bits), len(piece))

    def include(self, matrix: Int64[Tensor, "H1 H1"], saturated: int = 0) -> None:
        """Add the sum over tokens that were counted elsewhere, which is taken over, and how many had to be held there.

        Raises:
            ValueError: the sums leave 64-bit integers.
        """
        if self._total is None:
            self._total = matrix
        else:
            require_room(self._total, matrix)
            self._total += matrix
        self._folded += int(matrix[-1, -1])
        self.saturated += saturated

    def matrix(self) -> Int64[Tensor, "H1 H1"]:
        """Return G so far, as a matrix of its own.

        Raises:
            ValueError: the sums leave 64-bit integers.
        """
        size = self.exponents.numel() + 1
        if self._pending:
            folded = self._fold()
            if self._total is not None:
                require_room(self._total, folded)
                folded += self._total
            return folded
        if self._total is None:
            return torch.zeros((size, size), dtype=torch.int64, device=self.exponents.device)
        return self._total.clone()

    def _add(self, planes: Int8[Tensor, "planes T C"], tokens: int) -> None:
        if self._split is None or tokens == 0:
            return
        if self._pending + tokens > PENDING:
            self._total, self._folded = self.matrix(), self.count
            self._panels, self._pending = [], 0
        width = planes.shape[2]
        step = PANEL.get(planes.device.type, PANEL["cpu"])
        fresh = not self._panels
        for number, (left, right, _) in enumerate(self._split.products):
            one, other = planes[left].flatten(0, 1), planes[right].flatten(0, 1)
            if planes.device.type == "cuda":  # its products want rows of both factors to run along the sum
                one, other = one.T.contiguous().T, other.T.contiguous().T
            if fresh:
                self._panels.append([])
            for panel, first in enumerate(range(0, width, step)):
                rows = min(step, width - first)
                factors = one[:, first : first + rows].T, other[:, first:]
                if fresh:
                    self._panels[number].append(torch._int_mm(*factors))
                    continue
                room = self._planes.take("product", rows * (width - first), torch.int32, planes.device)
                product = torch._int_mm(*factors, out=room.view(rows, width - first))
                self._panels[number][panel].add_(product)
        self._pending += tokens

    def _fold(self) -> Tensor:
        """Return what is pending as G: Σ r rᵀ + o sᵀ + s oᵀ + n o oᵀ, with s the sums of r = q - o."""
        if self._split is None:
            raise ValueError("nothing is pending")
        size = self.exponents.numel() + 1
        total = torch.empty((size, size), dtype=torch.int64, device=self.exponents.device)
        factors = [factor for _, _, factor in self._split.products]
        blocks = []
        for panels in zip(*self._panels, strict=True):
            first = blocks[-1].stop if blocks else 0
            blocks.append(slice(first, min(first + len(panels[0]), size)))
            rows = total[blocks[-1], first:]
            parts = [panel[: rows.shape[0], : rows.shape[1]] for panel in panels]
            torch.mul(parts[0].to(torch.int64), factors[0], out=rows)
            for part, factor in zip(parts[1:], factors[1:], strict=True):
                rows.add_(part, alpha=factor)
        if offset := self._split.offset:
            # With u = o s + o² n / 2 the correction is u_i + u_j; for the channel of ones o = 0.
            u = offset * total[:, -1] + offset * offset // 2 * self._pending
            ones = total[:, -1] + offset * self._pending
            ones[-1] = self._pending
            for block in blocks:
                total[block, block.start :] += u[block, None] + u[None, block.start :]
            total[:, -1] = ones
            total[-1] = ones
        for block in blocks:
            total[block.stop :, block] = total[block, block.stop :].T
        require_room(total)
        return total


def float64_gram(
    q: Float[Tensor, "T H"], bits: int, weights: Int64[Tensor, "T"] | None = None, largest: int = 1
) -> Int64[Tensor, "H1 H1"]:
    """Return Σ_t w_t q̃_t q̃_tᵀ of integers by products in float64, so few tokens at a time that each is exact.

    Args:
        q: the integers, of any float dtype.
        bits: of the integers.
        weights: w_t; None for 1 each.
        largest: a bound of the weights.
    """
    q = torch.cat([q.double(), q.new_ones((len(q), 1), dtype=torch.float64)], dim=1)
    total = torch.zeros((q.shape[1], q.shape[1]), dtype=torch.int64, device=q.device)
    # rows · w · 2^(2 bits - 2) ≤ 2^52 in every product; w q is exact as well.
    at_once = 2 ** (EXACT_BITS - 2 * (bits - 1) - 1 - (largest - 1).bit_length())
    if weights is None:
        for part in q.split(at_once):
            total += (part.T @ part).to(torch.int64)
        return total
    for part, by in zip(q.split(at_once), weights.split(at_once), strict=True):
        total += ((part * by[:, None]).T @ part).to(torch.int64)
    return total


def require_room(*matrices: Int64[Tensor, "H1 H1"]) -> None:
    """Check that the sum of such matrices stays within 64-bit integers.

    Raises:
        ValueError: it does not.
    """
    diagonals = [matrix.diagonal() for matrix in matrices]
    if bool((sum(diagonal.double() for diagonal in diagonals).abs() >= OVERFLOW).any()):
        count = sum(int(diagonal[-1]) for diagonal in diagonals)
        raise ValueError(f"{count:,} tokens are too many: their sums leave 64-bit integers")


@cache
def has_int8(device: str) -> bool:
    """Tell whether a kind of device multiplies int8 matrices fast and exactly.

    Processors without VNNI add pairs of products in 16 bits, where they overflow, or have no fast product at all.
    """
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    if device == "cpu":
        if not torch.backends.mkldnn.is_available() or supported is None or not supported():
            return False
    elif device != "cuda":
        return False
    extremes = torch.tensor([[-128, 127], [127, -128]]).repeat(64, 32)
    extremes[:64] = -128
    wanted = extremes.T @ extremes
    try:
        given = extremes.to(torch.int8).to(device)
        left = given.T.contiguous()
        return all(torch.equal(torch._int_mm(left, right).cpu().to(torch.int64), wanted) for right in (given, left.T))
    except (RuntimeError, AssertionError):
        return False


def _pieces(parts: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the parts in groups of no more than `AT_ONCE` rows."""
    groups: list[list[Tensor]] = [[]]
    room = AT_ONCE
    for part in parts:
        while len(part):
            groups[-1].append(part[:room])
            part, room = part[room:], room - len(part[:room])
            if room == 0:
                groups.append([])
                room = AT_ONCE
    return [group for group in groups if group]
