"""Running sums Σ_t q̃_t q̃_tᵀ of integers, exact on every path: by int8 digits where a device has them, else in float64.

int32 holds the sums of products of digits (`digits`) for `PENDING` tokens, float64 those of the integers themselves for
2^14 or more. They are folded into 64-bit integers when that many are reached, or when the sum is asked for. Only what
is on and above the diagonal is computed, in panels of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from time import perf_counter

import torch
from jaxtyping import Float, Int, Int16, Int64
from torch import Tensor

from registry.maths.digits import WHOLE, Digits, Form, Splitter, in_groups, padded
from registry.maths.fixed_point import NORM_BITS
from registry.maths.threads import one_thread

EXACT_BITS = 53
"""A float64 product of matrices is exact while its sums stay below 2^53."""

OVERFLOW = 2.0**62
"""No entry of G may reach this; the diagonal tells, since it is where a Gram is largest."""

PENDING = 2**16 - 1
"""Tokens whose products of digits int32 can hold: each adds up to 2 · 2^14 in magnitude."""

AT_ONCE = 2**13
"""Tokens that are split at a time."""

RARE_TOKENS = 2**10
"""Rare tokens (`digits`) of a sum that are multiplied together; fewer wait, which costs less memory than their sums."""

PANEL = {"cpu": (96, 256), "cuda": (2048, 2048)}
"""Rows of a panel, at least and at most: fewer save work at the diagonal, more use the device better."""

PROBES = ((16, 32), (48, 80), (128, 64), (528, 304))
"""Tokens and channels of the products that are checked before int8 is used; CUDA needs multiples of 8."""

SPEED = (512, 256)
"""Tokens and channels of the products that are timed before int8 is used."""

TRIES = 5


class GramAccumulator:
    """G of one site and layer while tokens are still being added; a mutable `Statistics`.

    An addition that does not return leaves a sum that must not be used.
    """

    def __init__(self, exponents: Int16[Tensor, "H"], bits: int = NORM_BITS, splitter: Splitter | None = None) -> None:
        """Begin a sum of integers of so many bits, 20 at most; sums may share a splitter's room, one at a time."""
        self.exponents, self.bits, self.saturated = exponents, bits, 0
        self._splitter = splitter or Splitter()
        self._form = None if has_int8(exponents.device.type) else WHOLE
        self._pending: dict[Form, _Pending] = {}
        self._rare: list[Int[Tensor, "_ H"]] = []
        self._total: Tensor | None = None
        self._folded = 0

    @property
    def count(self) -> int:
        """The tokens that were counted."""
        return self._folded + sum(pending.tokens for pending in self._pending.values()) + sum(map(len, self._rare))

    def add(self, parts: Sequence[Float[Tensor, "_ H"]]) -> None:
        """Add tokens, one a row (ValueError: an activation is NaN or infinite, or the sums leave 64-bit integers)."""
        for pieces in in_groups(parts, AT_ONCE):
            found, rare, held = self._splitter.of_activations(pieces, self.exponents, self.bits, self._form)
            self._add(found)
            self._rare += rare
            if sum(map(len, self._rare)) >= RARE_TOKENS:
                q, self._rare = torch.cat(self._rare), []
                self._add(self._splitter.of_rare(q, self.bits))
            self.saturated += held

    def include(self, matrix: Int64[Tensor, "H1 H1"], saturated: int = 0) -> None:
        """Add the sum over tokens that were counted elsewhere, which is taken over, and how many had to be held there.

        (ValueError: the sums leave 64-bit integers.)
        """
        if self._total is None:
            self._total = matrix
        else:
            require_room(self._total, matrix)
            self._total += matrix
        self._folded += int(matrix[-1, -1])
        self.saturated += saturated

    def matrix(self) -> Int64[Tensor, "H1 H1"]:
        """Return G so far, as a matrix of its own (ValueError: the sums leave 64-bit integers)."""
        size, total = self.exponents.numel() + 1, self._total
        parts = [partial(self._fold, pending) for pending in self._pending.values()]
        if self._rare:
            parts.append(partial(float64_gram, torch.cat(self._rare).double(), self.bits))
        for part in parts:
            folded = part()
            if total is not None:
                require_room(total, folded)
                folded += total
            total = folded
        if total is None:
            return torch.zeros((size, size), dtype=torch.int64, device=self.exponents.device)
        return total.clone() if total is self._total else total

    def _add(self, found: Sequence[Digits]) -> None:
        for digits in found:
            pending = self._pending.setdefault(digits.form, _Pending(digits.form))
            most = exact_tokens(self.bits) if digits.form is WHOLE else PENDING
            if pending.tokens and pending.tokens + digits.tokens > most:
                self._total, self._folded, self._pending, self._rare = self.matrix(), self.count, {}, []
                pending = self._pending[digits.form] = _Pending(digits.form)
            self._multiply(digits, pending)

    def _multiply(self, digits: Digits, pending: "_Pending") -> None:
        device, blocks = self.exponents.device, panels_of(padded(self.exponents.numel()), self.exponents.device)
        planes = list(digits.planes)
        if device.type == "cuda":  # its products want the rows of both factors to run along the sum
            planes = [plane.T.contiguous().T for plane in planes]
        for left, right, number in digits.form.products:
            for panel, block in enumerate(blocks):
                one, other = planes[left][:, block].T, planes[right][:, block.start :]
                total = pending.panels.get((number, panel))
                if total is None:
                    pending.panels[number, panel] = one @ other if digits.form is WHOLE else torch._int_mm(one, other)
                elif digits.form is WHOLE:
                    total.addmm_(one, other)
                else:
                    product = self._splitter.take("product", tuple(total.shape), torch.int32, device)
                    total.add_(torch._int_mm(one, other, out=product))
        pending.tokens += digits.tokens

    def _fold(self, pending: "_Pending") -> Tensor:
        """Return what is pending as G: Σ r rᵀ + o sᵀ + s oᵀ + n o oᵀ, with o = q - r and s the sums of r."""
        size, form = self.exponents.numel() + 1, pending.form
        total = torch.empty((size, size), dtype=torch.int64, device=self.exponents.device)
        blocks = panels_of(padded(self.exponents.numel()), total.device)
        blocks = [slice(block.start, min(block.stop, size)) for block in blocks]
        for panel, block in enumerate(blocks):
            rows = total[block, block.start :]
            height, width = rows.shape
            parts = [pending.panels[number, panel][:height, :width] for number in range(len(form.factors))]
            rows.copy_(parts[0])
            if form.factors[0] != 1:
                rows.mul_(form.factors[0])
            for part, factor in zip(parts[1:], form.factors[1:], strict=True):
                rows.add_(part, alpha=factor)
        if form.offset:
            # With u = o s + o² n / 2 the correction is u_i + u_j; the channel of ones has o = 0.
            u = form.offset * total[:, -1] + form.offset**2 // 2 * pending.tokens
            ones = total[:, -1] + form.offset * pending.tokens
            ones[-1] = pending.tokens
            for block in blocks:
                total[block, block.start :].add_(u[block, None]).add_(u[None, block.start :])
            total[:, -1] = total[-1] = ones
        _mirror(total, blocks)
        require_room(total)
        return total


@dataclass
class _Pending:
    """Sums that are not folded yet, int32 or float64: (the number of a form's sum, that of a panel) → its part."""

    form: Form
    panels: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    tokens: int = 0


def float64_gram(q: Float[Tensor, "T H"], bits: int) -> Int64[Tensor, "H1 H1"]:
    """Return Σ_t q̃_t q̃_tᵀ of integers of so many bits, in float64 of so few tokens at a time that each is exact."""
    q = torch.cat([q.double(), q.new_ones((len(q), 1), dtype=torch.float64)], dim=1)
    total = torch.zeros((q.shape[1], q.shape[1]), dtype=torch.int64, device=q.device)
    blocks = panels_of(q.shape[1], q.device)
    at_once = exact_tokens(bits)
    for start in range(0, len(q), at_once):
        rows = q[start : start + at_once]
        for block in blocks:
            total[block, block.start :] += (rows[:, block].T @ rows[:, block.start :]).to(torch.int64)
    _mirror(total, blocks)
    return total


def exact_tokens(bits: int) -> int:
    """Return of how many tokens float64 holds the sums exactly.

    Tokens · 2^(2 bits - 2) ≤ 2^52, so that every partial sum is an integer below 2^53, in any order.
    """
    return int(2 ** (EXACT_BITS - 2 * (bits - 1) - 1))


def panels_of(width: int, device: torch.device) -> list[slice]:
    """Return the rows of each panel of a square; CUDA's products need 17 or more."""
    least, most = PANEL.get(device.type, PANEL["cpu"])
    step = min(max(width // 6 // 32 * 32, least), most)
    starts = [start for start in range(0, width, step) if start == 0 or width - start > 16]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], width], strict=True)]


def _mirror(total: Int64[Tensor, "H1 H1"], blocks: Sequence[slice]) -> None:
    for block in blocks:
        total[block.stop :, block] = total[block, block.stop :].T


def require_room(*matrices: Int64[Tensor, "H1 H1"]) -> None:
    """Check that the sum of such matrices stays within 64-bit integers (ValueError: it does not)."""
    diagonals = [matrix.diagonal() for matrix in matrices]
    if bool((torch.stack([diagonal.double() for diagonal in diagonals]).sum(dim=0).abs() >= OVERFLOW).any()):
        count = sum(int(diagonal[-1]) for diagonal in diagonals)
        raise ValueError(f"{count:,} tokens are too many: their sums leave 64-bit integers")


@cache
def has_int8(device: str) -> bool:
    """Tell whether a kind of device multiplies int8 matrices fast and exactly.

    Processors without VNNI add pairs of products in 16 bits, where they overflow, or have no fast product at all; so
    does oneDNN where `ONEDNN_MAX_CPU_ISA` forbids VNNI. torch does not report all that have it, so speed is measured,
    once a process; the sums are the same either way.
    """
    if device not in ("cpu", "cuda"):
        return False
    try:
        with one_thread():  # threads that wait for one another would be timed, where others compute too
            return (device == "cuda" or _is_fast()) and all(
                _is_exact(values, device) for shape in PROBES for values in _extremes(*shape)
            )
    except (RuntimeError, AssertionError):
        return False


def _is_fast() -> bool:
    """Tell whether a product of int8 takes at most half as long as one of float32; takes milliseconds.

    A Gram takes four halves of the former, or one half of a product of float64, which takes as long as two of float32.
    """
    whole, real = torch.ones(SPEED, dtype=torch.int8), torch.ones(SPEED)
    seconds: dict[torch.Tensor, list[float]] = {whole: [], real: []}
    for _ in range(TRIES):
        for rows, product in ((whole, torch._int_mm), (real, torch.mm)):
            start = perf_counter()
            product(rows.T, rows)
            seconds[rows].append(perf_counter() - start)
    return 2 * min(seconds[whole]) <= min(seconds[real])


def _extremes(tokens: int, width: int) -> Iterator[Int[Tensor, "T H"]]:
    """Yield matrices whose products show whether a kernel adds pairs of products in 16 bits.

    Kernels for unsigned times signed bytes add 128 to either factor and correct the sum afterwards: 127 becomes 255,
    and a pair reaches 2 · 255 · 127 = 64,770, but -128 becomes 0. Kernels for signed bytes reach 2 · 128² = 32,768.
    In the first two matrices each channel has one value in all tokens, so that whichever factor is shifted and
    whichever tokens make a pair, every pair of extremes is added up; in the others values vary from token to token.
    """
    token, channel = torch.meshgrid(torch.arange(tokens), torch.arange(width), indexing="ij")
    for number in (channel, channel // 16, token + channel, (token // 2 + channel) * (token >= tokens // 2) + 1):
        yield torch.where(number % 2 == 0, 127, -128)
    yield torch.randint(-128, 128, (tokens, width), generator=torch.Generator().manual_seed(0))


def _is_exact(values: Int[Tensor, "T H"], device: str) -> bool:
    """Tell whether the products of a matrix with itself are exact, in each layout of both factors."""
    exact = (values.double().T @ values.double()).to(torch.int64)
    rows = values.to(torch.int8).to(device)
    columns = rows.T.contiguous().T  # the same, one channel after the other in memory
    layouts = [(columns, columns), (columns, rows)]
    if device == "cpu":  # CUDA wants the rows of the left factor to run along the sum
        layouts += [(rows, rows), (rows, columns)]
    return all(torch.equal(torch._int_mm(left.T, right).cpu().to(torch.int64), exact) for left, right in layouts)
