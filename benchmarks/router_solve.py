"""Solving routers from the statistics of 8 experts at H = 4096, against the bare LAPACK factorisations of their sums.

Four of 32 layers are solved a round, each from the same statistics: layers cost alike.
"""

from pathlib import Path

import torch

from benchmarks.alternating import Comparison, alternate, run
from registry.maths.router.gates import ridge
from registry.maths.statistics import PackedStatistics, Statistics, gram_sum
from registry.maths.threads import one_thread

HIDDEN, EXPERTS, LAYERS = 4096, 8, 4


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparison."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(-30_000, 30_000, (256, HIDDEN + 1), generator=draw).double()
    matrix = (rows.T @ rows).to(torch.int64)
    matrix.diagonal().add_(10**12)
    exponents = torch.randint(10, 14, (HIDDEN,), generator=draw).to(torch.int16)
    whole = Statistics(matrix, exponents)
    packed = whole.packed()  # as it is stored
    statistics = [PackedStatistics(packed + number, exponents) for number in range(EXPERTS)]
    weights = [1.0 + number / 8 for number in range(EXPERTS)]
    total = whole.gram

    def ours() -> None:
        for _ in range(LAYERS):
            ridge(gram_sum(statistics, weights), 0.01)

    def bare() -> None:
        with one_thread():
            for _ in range(LAYERS):
                _, info = torch.linalg.cholesky_ex(total)
                assert int(info) == 0

    return [
        alternate(
            f"router solve, H = {HIDDEN}, E = {EXPERTS}", ours, bare, 3, target=1.15, note=f"{LAYERS} layers a round"
        )
    ]


if __name__ == "__main__":
    run(measure)
