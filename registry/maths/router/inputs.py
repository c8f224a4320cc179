"""Inputs of router methods."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from registry.maths.statistics import GramSum, PackedStatistics, gram_sum


@dataclass(frozen=True)
class RouterInputs:
    """Inputs of router methods for one layer's gate; each method uses what it needs.

    Attributes:
        statistics: one a member, in name order, from the passes that the method names; read one at a time, once.
            Empty for methods without statistics.
        weights: ω_e > 0, one a member.
        lam: λ ≥ 0, absolute.
        normalize: rows at unit length.
        bias: b_e, one a member, added to its logit as far as a linear router can; empty for none.
        seed: of what is drawn at random.
        digests: content digest of each member, in name order; of copies of one version, each with its number.
        rows: returns the rows that the members were trained with, one a member.
        kept_sum: returns the weighted sum of the statistics where it is kept; None to add them up.
    """

    statistics: Iterable[PackedStatistics] = ()
    weights: Sequence[float] = ()
    lam: float = 0.0
    normalize: bool = True
    bias: Sequence[float] = ()
    seed: int = 0
    layer: int = 0
    digests: Sequence[str] = ()
    hidden_size: int = 0
    rows: Callable[[], Sequence[Tensor]] = list
    kept_sum: Callable[[], GramSum] | None = None

    def total(self) -> GramSum:
        """Return the weighted sum of the statistics, for the caller to overwrite (ValueError: there is no member)."""
        return gram_sum(self.statistics, self.weights) if self.kept_sum is None else self.kept_sum()
