"""The weighted sum of several members' Grams at one site and layer, with their moments side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.statistics import PackedStatistics, Statistics


@dataclass(frozen=True, eq=False)
class GramSum:
    """Σ_e ω_e A_e and [ω_1 s_1 … ω_E s_E] in real units, float64.

    Attributes:
        gram: the sum; the upper triangle alone counts.
        moments: one column a member.
    """

    gram: Float[Tensor, "H H"]
    moments: Float[Tensor, "H E"]


def gram_sum(statistics: Iterable[Statistics | PackedStatistics], weights: Sequence[float]) -> GramSum:
    """Return the sum over members, added in the order given: callers give name order.

    Args:
        statistics: one a member; scales may differ. Taken one at a time, so that only one need be in memory.
        weights: ω_e, one a member.

    Raises:
        ValueError: there is no member.
    """
    gram, moments = None, []
    for item, weight in zip(statistics, weights, strict=True):
        first = gram is None
        if gram is None:
            gram = torch.zeros((item.exponents.numel(),) * 2, dtype=torch.float64)
        item.add_upper_gram_to(gram, weight, first=first)  # Cholesky reads no more
        moments.append(item.moment * weight)
    if gram is None:
        raise ValueError("a router needs at least one expert")
    return GramSum(gram, torch.stack(moments, dim=1))
