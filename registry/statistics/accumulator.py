"""The sums of one site of one layer during a pass.

Shapes: T tokens of a batch, row by row; H channels of the site.
"""

from collections.abc import Sequence

from jaxtyping import Float, Int16
from torch import Tensor

from registry.io.process import defer_sigint
from registry.maths.digits import Splitter
from registry.maths.gram import GramAccumulator
from registry.maths.statistics import Statistics


class RunningSums:
    """The sums, and the number of windows in them.

    Both change together: Ctrl-C waits until they have, and any other interruption leaves `broken` sums, which must not
    be used.

    Attributes:
        completed_windows: windows that were counted.
        broken: an addition did not complete.
    """

    def __init__(self, exponents: Int16[Tensor, "H"], bits: int, splitter: Splitter) -> None:
        self._exponents = exponents
        self._sums = GramAccumulator(exponents, bits, splitter)
        self.completed_windows, self.broken = 0, False

    def restore(self, total: Statistics, completed_windows: int) -> None:
        """Start from the sums of an interrupted pass and the number of windows in them."""
        self._sums.include(total.matrix.to(self._exponents.device), total.saturated)
        self.completed_windows = completed_windows

    def add(self, rows: Float[Tensor, "T H"], runs: Sequence[slice], completed_windows: int) -> None:
        """Add the windows of a batch.

        Args:
            rows: activations, one row a token.
            runs: which rows count, as runs of rows.
            completed_windows: the number of windows that the sums hold afterwards.

        Raises:
            ValueError: an activation that counts is NaN or infinite, or the sums leave 64-bit integers.
        """
        with defer_sigint():
            self.broken = True
            if runs:
                self._sums.add([rows[run] for run in runs])  # views of the rows that count, not copied
            self.completed_windows, self.broken = completed_windows, False

    def statistics(self) -> Statistics:
        """Return the sums on the CPU."""
        return Statistics(self._sums.matrix().cpu(), self._sums.exponents.cpu(), self._sums.saturated)
