"""The sums of one site of one layer while a pass is under way, in as many parts as there are folds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.io.signals import defer_sigint
from registry.maths.gram import GramAccumulator
from registry.maths.limbs import Splitter
from registry.maths.statistics import Statistics, complete_folds


class RunningSums:
    """The sum of every fold, and the number of windows in them.

    They change together: Ctrl-C waits for it, and whatever else gets in between leaves `broken` sums behind, which
    must not be gone on from.

    Attributes:
        done: windows that were counted.
        broken: an addition did not come to its end.
    """

    def __init__(self, exponents: Tensor, bits: int, folds: int, splitter: Splitter) -> None:
        self._exponents, self._bits = exponents, bits
        self._sums = [GramAccumulator(exponents, bits, splitter) for _ in range(folds)]
        self.done, self.broken = 0, False

    def restore(self, total: Statistics, folds: Sequence[Statistics], done: int) -> None:
        """Go on from the whole, every fold but the last, and the windows in them."""
        for sums, part in zip(self._sums, complete_folds(total, folds), strict=True):
            sums.include(part.matrix.to(self._exponents.device), part.saturated)
        self.done = done

    def add(self, rows: Tensor, folds: Sequence[Sequence[slice]], done: int, weights: Tensor | None = None) -> None:
        """Add the windows up to number `done`.

        Args:
            rows: activations (T, H), a row a token.
            folds: which rows count, fold by fold, as runs of rows.
            done: the number of windows that are in the sums afterwards.
            weights: how often each row counts, int64 of shape (T,); None for once.

        Raises:
            ValueError: an activation that counts is NaN or infinite, or the sums leave 64-bit integers.
        """
        with defer_sigint():
            self.broken = True
            for sums, runs in zip(self._sums, folds, strict=True):
                if not runs:
                    continue
                if weights is None:
                    sums.add([rows[run] for run in runs])
                    continue
                x, times = torch.cat([rows[run] for run in runs]), torch.cat([weights[run] for run in runs])
                taken = Statistics.of(x, self._exponents, None, self._bits, times)
                sums.include(taken.matrix, taken.saturated)
            self.done, self.broken = done, False

    def statistics(self) -> tuple[Statistics, tuple[Statistics, ...]]:
        """Return the whole, and every fold but the last, on the CPU."""
        parts = [Statistics(sums.matrix().cpu(), sums.exponents.cpu(), sums.saturated) for sums in self._sums]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total, tuple(parts[:-1])

    def clear(self) -> None:
        """Let go of the sums."""
        self._sums = []
