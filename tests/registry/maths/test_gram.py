"""Proves: every way to an exact Gram gives the same integers: at the extremes, in any shape, however split."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import sleep

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from registry.maths import gram as module
from registry.maths.digits import Splitter
from registry.maths.fixed_point import limit, quantise
from registry.maths.gram import GramAccumulator, float64_gram, has_int8
from registry.maths.statistics import Statistics

KINDS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "any": lambda q, token, most: q,
    "highest": lambda q, token, most: torch.full_like(q, most),
    "lowest": lambda q, token, most: torch.full_like(q, -most),
    "either": lambda q, token, most: torch.where(q > 0, most, -most),
    "few wide": lambda q, token, most: torch.where(token % 5 == 3, q, q % 1000),
    "at the border": lambda q, token, most: torch.where(q > 0, 32767, -32768).clamp(-most, most),
    "small": lambda q, token, most: torch.where(q > 0, 8191, -8191),
    "beyond small": lambda q, token, most: torch.where(q > 0, 8192, -8192),
    "rare": lambda q, token, most: torch.where(token == 4, q, q % 8192),
}
"""Name → integers, of random ones, the numbers of their tokens and the largest."""

WIDTHS = (1, 2, 7, 23, 24, 95, 96, 97, 113, 300)


def flat(width: int) -> Tensor:
    return torch.zeros(width, dtype=torch.int16)


def reference(q: Tensor) -> Tensor:
    q = torch.cat([q.to(torch.int64), torch.ones(len(q), 1, dtype=torch.int64)], dim=1)
    return q.T @ q


def integers(tokens: int, width: int, bits: int, kind: str) -> Tensor:
    most = limit(bits)
    q = torch.randint(-most, most + 1, (tokens, width), generator=torch.Generator().manual_seed(width + tokens))
    return KINDS[kind](q, torch.arange(tokens)[:, None], most)


@pytest.fixture(autouse=True)
def _int8_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way of int8 digits on every machine: where its products are slow they are exact all the same."""
    if not has_int8("cpu"):
        monkeypatch.setattr(module, "has_int8", lambda device: True)
        monkeypatch.setattr(torch, "_int_mm", _plain)


def _plain(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    product = (left.to(torch.int64) @ right.to(torch.int64)).to(torch.int32)
    return product if out is None else out.copy_(product)


@pytest.mark.check(after=3)
@pytest.mark.trust(after=7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [16, 20])
@pytest.mark.parametrize("int8", [True, False])
def test_all_ways_give_the_same_integers(bits: int, kind: str, int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_int8", lambda device: int8)
    splitter = Splitter()  # shared, so that room of one shape is used for others
    for width, tokens in itertools.product(WIDTHS, (1, 7, 8, 21)):
        q = integers(tokens, width, bits, kind)
        parts = q, q[:3]
        wanted = reference(torch.cat(parts))
        assert torch.equal(float64_gram(torch.cat(parts).double(), bits), wanted)
        sums = GramAccumulator(flat(width), bits, splitter)
        for part in parts:
            sums.add([part.float()])
        assert torch.equal(sums.matrix(), wanted), (width, tokens)
        assert (sums.count, sums.saturated) == (sum(map(len, parts)), 0)


def test_as_cuda_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products want 17 rows or more, and multiples of 8 of everything else."""
    taken = torch._int_mm

    def strict(left: Tensor, right: Tensor, **out: Tensor) -> Tensor:
        assert len(left) > 16
        assert all(size % 8 == 0 for size in (len(left), *right.shape))
        return taken(left, right, **out)

    monkeypatch.setattr(torch, "_int_mm", strict)
    for bits, width in itertools.product((16, 20), (*WIDTHS, *range(100, 140))):
        q, sums = integers(9, width, bits, "few wide"), GramAccumulator(flat(width), bits)
        for _ in range(2):
            sums.add([q.float()])
        assert torch.equal(sums.matrix(), 2 * reference(q))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([16, 20]), st.lists(st.integers(0, 30), max_size=5), st.integers(1, 40))
def test_folds_chunks_and_parts_change_nothing(seed: int, bits: int, cuts: list[int], chunk: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.empty(30, 5).normal_(generator=draw) * limit(bits) / 2
    exponents = torch.randint(-3, 3, (5,), generator=draw).to(torch.int16)
    q, held = quantise(x, exponents, bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PENDING", 30 - chunk % 23)
        patch.setattr(module, "AT_ONCE", chunk)
        patch.setattr("registry.maths.digits.CHUNK", 24 * 3)
        sums = GramAccumulator(exponents, bits)
        parts: Sequence[Tensor] = torch.tensor_split(x, sorted(cuts))
        sums.add(parts[:2])
        assert torch.equal(sums.matrix(), reference(q[: sum(map(len, parts[:2]))]))  # and asking changes nothing
        sums.add(parts[2:])
        assert torch.equal(sums.matrix(), reference(q))
        assert sums.saturated == int(held.sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bits", [16, 20])
def test_activations_are_rounded_as_ever(dtype: torch.dtype, bits: int) -> None:
    """Halves to even, tiny and large ones, and those that are held at the limit."""
    most = limit(bits)
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 1e-30, -0.0, 3.49, most - 0.5, most + 0.25, -most - 0.5, most + 1.0, -1e4, 6e4]
    finite = min(torch.finfo(dtype).max, most + 1.0)
    x = torch.tensor([values, values[::-1]], dtype=torch.float64).clamp(-finite, finite).to(dtype)
    for shift in (0, -2, 3, 100, -100):
        q, held = quantise(x, flat(14) + shift, bits)
        sums = GramAccumulator(flat(14) + shift, bits)
        sums.add([x])
        assert torch.equal(sums.matrix(), reference(q))
        assert sums.saturated == int(held.sum())


@pytest.mark.parametrize("bits", [16, 20])
@pytest.mark.parametrize("together", [2, 5, 2**10])
def test_rare_tokens_change_nothing(bits: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RARE_TOKENS", together)
    q = torch.randint(-8191, 8192, (200, 30), generator=torch.Generator().manual_seed(bits))
    q[::40, 7] = torch.tensor([limit(bits), -limit(bits), 8192, -8192, 20_000])
    sums = GramAccumulator(flat(30), bits)
    for start in range(0, 200, 50):
        part = q[start : start + 50].float()
        before = sums.count
        sums.add([part[:10], part[10:]])
        assert sums.count == before + 50
        assert torch.equal(sums.matrix(), reference(q[: start + 50]))
    apart = sum(map(len, sums._rare))
    assert apart == 5 % together if together > 2 else apart < 2
    assert {form.bits for form in sums._pending} == {14} if together > 5 else len(sums._pending) > 1
    taken = Statistics(sums.matrix(), sums.exponents, sums.saturated)
    assert (taken.count, taken.saturated) == (200, 0)


def test_rare_tokens_are_counted_where_sums_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING", 100)
    q = torch.randint(-8191, 8192, (320, 30), generator=torch.Generator().manual_seed(0))
    q[::80, 3] = 30_000
    sums = GramAccumulator(flat(30))
    for part in q.float().split(80):
        sums.add([part])
    assert sums.count == 320
    assert torch.equal(sums.matrix(), reference(q))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_activations_that_are_not_finite_and_sums_that_leave_64_bits_are_refused(bad: float) -> None:
    x, matrix = torch.zeros(9, 3), torch.zeros(4, 4, dtype=torch.int64)
    x[8, 2], matrix[-1, -1], matrix[0, 0] = bad, 2**40, 2**62 - 1
    sums = GramAccumulator(flat(3))
    with pytest.raises(ValueError, match="an activation is NaN or infinite"):
        sums.add([x])
    sums.include(matrix)
    with pytest.raises(ValueError, match="2,199,023,255,552 tokens are too many"):
        sums.include(matrix.clone())


def test_as_many_tokens_as_int32_holds_at_the_extremes() -> None:
    """What is not yet folded is as large as it can be: -128 times -128, twice, 65,535 times."""
    x = torch.full((1, 1), -(2.0**15)).expand(module.PENDING, 1)
    sums = GramAccumulator(flat(1), 20)
    sums.add([x])
    sums.add([x[:9]])
    count = module.PENDING + 9
    assert sums.matrix().tolist() == [[count * 2**30, -count * 2**15], [-count * 2**15, count]]


@pytest.mark.parametrize("bits", [16, 20])
def test_float64_sums_are_folded_before_they_round(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^14 tokens of 20 bits at the extremes are exact in float64; more are folded into integers first."""
    monkeypatch.setattr(module, "has_int8", lambda device: False)
    most = limit(bits)
    x, sums = (
        torch.tensor([[most, -most, 1]]).float().expand(module.exact_tokens(20), 3),
        GramAccumulator(flat(3), bits),
    )
    for part in (x, x[:1000], x[:7]):
        sums.add([part])
    count, square = len(x) + 1007, most**2
    assert sums.count == count
    assert sums.matrix()[:2, :2].tolist() == [[count * square, -count * square], [-count * square, count * square]]
    assert sums.matrix()[3].tolist() == [count * most, -count * most, count, count]


def test_int8_is_refused_where_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch._int_mm

    def slow(left: Tensor, right: Tensor) -> Tensor:
        sleep(0.05)
        return product(left, right)

    monkeypatch.setattr(torch, "_int_mm", slow)
    assert not has_int8.__wrapped__("cpu")
    assert not has_int8.__wrapped__("mps")


def test_devices_without_int8_take_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    q = integers(8000, 9, 20, "few wide")
    monkeypatch.setattr(module, "has_int8", lambda device: False)
    monkeypatch.delattr(torch, "_int_mm")
    assert torch.equal(Statistics.of(q.float(), flat(9), bits=20).matrix, reference(q))


@pytest.mark.parametrize("shifts", [(0, 0), (128, 0), (0, 128)])
def test_product_that_overflows_is_found_out(monkeypatch: pytest.MonkeyPatch, shifts: tuple[int, int]) -> None:
    """As processors without VNNI do it: pairs of products added in 16 bits, one factor perhaps made unsigned."""

    def saturating(left: Tensor, right: Tensor) -> Tensor:
        rows, columns = left.long(), right.long()
        products = (rows + shifts[0])[:, :, None] * (columns + shifts[1])[None]
        pairs = (products[:, ::2] + products[:, 1::2]).clamp(-(2**15), 2**15 - 1)
        surplus = shifts[0] * columns.sum(0) + shifts[1] * rows.sum(1)[:, None]
        return (pairs.sum(1) - surplus).to(torch.int32)

    monkeypatch.setattr(module, "PROBES", module.PROBES[:1])
    monkeypatch.setattr(module, "_is_fast", lambda: True)
    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert not has_int8.__wrapped__("cpu")


RANDOM_SUMS = """
import torch
from registry.maths.gram import GramAccumulator, float64_gram, has_int8
draw = torch.Generator().manual_seed(0)
for width in (1, 24, 97, 300):
    for tokens in (1, 8, 21, 500):
        for most in (2**7, 2**15 - 1, 2**19 - 1):
            q = torch.randint(-most, most + 1, (tokens, width), generator=draw)
            sums = GramAccumulator(torch.zeros(width, dtype=torch.int16), 20)
            sums.add([q.float()])
            assert torch.equal(sums.matrix(), float64_gram(q.double(), 20)), (width, tokens, most)
print(has_int8("cpu"))
"""


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "", "SSE41"])
def test_sums_are_exact_whatever_onednn_may_use(isa: str) -> None:
    """Instructions of a processor that its user forbids to oneDNN are no reason to lose a bit."""
    limits = {"ONEDNN_MAX_CPU_ISA": isa} | ({"ATEN_CPU_CAPABILITY": "avx2"} if isa == "AVX2" else {}) if isa else {}
    free = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA" or not isa}
    printed = subprocess.run(
        [sys.executable, "-c", RANDOM_SUMS], env=free | limits, capture_output=True, text=True, check=False
    )
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == f"{has_int8('cpu')}\n" or (isa and printed.stdout == "False\n")
