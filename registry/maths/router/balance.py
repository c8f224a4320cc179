"""Weights that balance the experts in the router, whatever their numbers of tokens."""

from collections.abc import Sequence


def balanced(weights: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return ω_e · n̄ / n_e with n̄ = (Σ n_e)/E: every expert enters the solution with ω_e · n̄ tokens.

    Ratios are those of integers, rounded once: equal counts leave the weights exactly as they are, and the order of
    members does not matter. An expert with ten times the tokens (its statistics times ten) gets a tenth of the weight
    relative to others; n̄ rises with it, so that all Grams grow by one factor against an absolute `lam`.

    Args:
        weights: ω_e > 0, one a member.
        counts: n_e ≥ 1, `Statistics.count` of each member at the layer.

    Raises:
        ValueError: a count is below 1, or weights and counts differ in number.
    """
    if len(weights) != len(counts):
        raise ValueError(f"{len(weights)} weights do not go with {len(counts)} counts")
    if any(count < 1 for count in counts):
        raise ValueError("an expert without tokens cannot be balanced")
    total = sum(counts)
    return [weight * (total / (len(counts) * count)) for weight, count in zip(weights, counts, strict=True)]
