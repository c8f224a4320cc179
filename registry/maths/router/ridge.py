"""The closed-form router: ridge regression from summed statistics, unit-norm columns (DUME eq. 6 and 7)."""

from collections.abc import Iterable, Sequence

from jaxtyping import Float
from torch import Tensor

from registry.maths.gram_sum import GramSum, gram_sum
from registry.maths.router.solve import as_gate, solve
from registry.maths.statistics import PackedStatistics, Statistics


def ridge(
    statistics: Iterable[Statistics | PackedStatistics], weights: Sequence[float], lam: float, normalize: bool = True
) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer, float64: row e is expert e's column of W, at unit length.

        W = (Σ_e ω_e A_e + lam·I)⁻¹ [ω_1 s_1 … ω_E s_E]            (H, E), DUME eq. 6–7
        gate.weight = (W / column norms)ᵀ                           (E, H)

    Solved by Cholesky in float64, on one thread, so that the result does not depend on how many there are. Grams are
    summed in the order given; callers give name order. No intercept: no host stores a router bias.

    Args:
        statistics: one a member, at the layer's `mlp_input`; scales may differ. Taken one at a time, so that only one
            need be in memory.
        weights: ω_e > 0, one a member.
        lam: ridge strength ≥ 0, absolute (not relative to the Gram).
        normalize: False leaves W's columns as they are: gate.weight = Wᵀ, whose logits estimate the experts' shares.

    Raises:
        ValueError: the regularised Gram is not positive definite, or a column is zero.
    """
    return ridge_of_sum(gram_sum(statistics, weights), lam, normalize)


def ridge_of_sum(total: GramSum, lam: float, normalize: bool = True) -> Float[Tensor, "E H"]:
    """Return gate.weight of one layer from the members' sum, which is overwritten (arguments and errors as `ridge`)."""
    return as_gate(solve(total.gram, total.moments, lam), normalize)
