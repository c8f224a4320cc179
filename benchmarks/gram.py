"""The exact Gram of 16-bit integers against the inexact float32 product `x.T @ x` of torch: python -m benchmarks.gram

Two rows a width, both of 4,096 tokens of float32, quantising included, and compared with the same product: the finished
64-bit sum asked for; and one more batch of a running sum, which is what a registration pass pays.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.alternating import Comparison, alternate, run
from registry.maths.digits import Splitter
from registry.maths.gram import GramAccumulator, float64_gram, has_int8

WIDTHS = (1024, 2048, 4096)
TOKENS = 4096
ROUNDS = 9
TARGET = 0.4 if has_int8("cpu") else 1.3
"""By products of int8, and of float64."""


def measure(scratch: Path) -> list[Comparison]:
    """Return three comparisons a width."""
    found = []
    for width in WIDTHS:
        draw = torch.Generator().manual_seed(width)
        q = torch.randint(-32767, 32768, (TOKENS, width), generator=draw, dtype=torch.int32).to(torch.int16)
        x = q.float() / 2**13
        new = partial(GramAccumulator, torch.full((width,), 13, dtype=torch.int16), 16, Splitter())
        running = new()

        def other(x: torch.Tensor = x) -> object:
            return x.T @ x

        def activations(x: torch.Tensor = x, new: Callable[[], GramAccumulator] = new) -> torch.Tensor:
            sums = new()
            sums.add([x])
            return sums.matrix()

        def batch(x: torch.Tensor = x, running: GramAccumulator = running) -> None:
            running.add([x])

        exact = float64_gram(q.double(), 16)
        if not torch.equal(activations(), exact):
            raise RuntimeError(f"H = {width}: the sums are not exact")
        for note, ours in (
            ("from float32", activations),
            ("from float32, a batch of a running sum", batch),
        ):
            claim = f"exact 16-bit Gram against fp32, H = {width:,}, T = {TOKENS:,}"
            found.append(alternate(claim, ours, other, ROUNDS, target=TARGET, note=note))
    return found


if __name__ == "__main__":
    run(measure)
