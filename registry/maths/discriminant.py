"""The direction in which two texts' activations differ most clearly, from their statistics."""

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.router.gates import solve
from registry.maths.statistics import PackedStatistics, Statistics


def discriminant(
    own: Statistics | PackedStatistics, other: Statistics | PackedStatistics, lam: float
) -> Float[Tensor, "H"]:
    """Return w = (A + A' + lam·I)⁻¹ (s / n − s' / n'), float64, for the Grams A, moments s and counts n of two texts.

    It is the linear discriminant (Fisher 1936) with the Gram in place of the scatter, or the damped regression of 1 / n
    on the tokens of one text and −1 / n' on those of the other: w·x is large for tokens like those of `own`.

    Args:
        own: statistics of one text at one layer.
        other: those of the other text, over the same channels at whatever scales.
        lam: λ ≥ 0, absolute.

    Raises:
        ValueError: a text has no tokens, or the regularised Gram is not positive definite.
    """
    if min(own.count, other.count) < 1:
        raise ValueError("a text without tokens has no mean")
    size = own.exponents.numel()
    gram = torch.zeros((size, size), dtype=torch.float64)  # of which `solve` reads the upper triangle alone
    own.add_upper_gram_to(gram, 1.0, first=True)
    other.add_upper_gram_to(gram, 1.0, first=False)
    difference = own.moment / own.count - other.moment / other.count
    return solve(gram, difference[:, None], lam)[:, 0]
