"""The sums of one site of one layer during a pass, in as many parts as there are folds.

Shapes: T tokens of a batch, row by row; H channels of the site.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int16, Int64
from torch import Tensor

from registry.io.signals import defer_sigint
from registry.maths.gram import GramAccumulator
from registry.maths.limbs import Splitter
from registry.maths.statistics import Statistics, complete_folds


class RunningSums:
    """The sum of every fold, and the number of windows in them.

    Both change together: Ctrl-C waits until they have, and any other interruption leaves `broken` sums, which must not
    be used.

    Attributes:
        completed_windows: windows that were counted.
        broken: an addition did not complete.
    """

    def __init__(self, exponents: Int16[Tensor, "H"], bits: int, folds: int, splitter: Splitter) -> None:
        self._exponents, self._bits = exponents, bits
        self._sums = [GramAccumulator(exponents, bits, splitter) for _ in range(folds)]
        self.completed_windows, self.broken = 0, False

    def restore(self, total: Statistics, folds: Sequence[Statistics], completed_windows: int) -> None:
        """Start from the sums of an interrupted pass: the total, every fold but the last, and the windows in them."""
        for sums, part in zip(self._sums, complete_folds(total, folds), strict=True):
            sums.include(part.matrix.to(self._exponents.device), part.saturated)
        self.completed_windows = completed_windows

    def add(
        self,
        rows: Float[Tensor, "T H"],
        folds: Sequence[Sequence[slice]],
        completed_windows: int,
        weights: Int64[Tensor, "T"] | None = None,
    ) -> None:
        """Add the windows of a batch.

        Args:
            rows: activations, one row a token.
            folds: which rows count, fold by fold, as runs of rows.
            completed_windows: the number of windows that the sums hold afterwards.
            weights: how often each row counts; None for once.

        Raises:
            ValueError: an activation that counts is NaN or infinite, or the sums leave 64-bit integers.
        """
        with defer_sigint():
            self.broken = True
            for sums, runs in zip(self._sums, folds, strict=True):
                if not runs:
                    continue
                if weights is None:
                    sums.add([rows[run] for run in runs])  # views of the rows that count, not copied
                    continue
                x = torch.cat([rows[run] for run in runs])  # (T, H) → (rows of this fold, H)
                row_weights = torch.cat([weights[run] for run in runs])  # (T,) → (rows of this fold,)
                weighted = Statistics.of(x, self._exponents, None, self._bits, row_weights)
                sums.include(weighted.matrix, weighted.saturated)
            self.completed_windows, self.broken = completed_windows, False

    def statistics(self) -> tuple[Statistics, tuple[Statistics, ...]]:
        """Return the total, and every fold but the last, on the CPU."""
        parts = [Statistics(sums.matrix().cpu(), sums.exponents.cpu(), sums.saturated) for sums in self._sums]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total, tuple(parts[:-1])
