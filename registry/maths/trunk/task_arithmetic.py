"""Task arithmetic: the base model plus a combination of task vectors.

Sources: Ilharco et al. 2022, §2; MergeME §3.1.2; with a coefficient for each member Soup-of-Experts, Ablin et al. 2025,
§2, eq. 2–3.
"""

from collections.abc import Callable, Iterator

from torch import Tensor

from registry.maths.trunk.combination import Combination, RowBlock, aligned, average


def combine(combination: Combination) -> Iterator[Tensor]:
    """Yield θ_0 + λ Σ_e ω_e (θ_e − θ_0), the weights ω scaled to a mean of 1; or θ_0 + Σ_e α_e (θ_e − θ_0).

    Option `scale` is λ, and α are the coefficients, where there are any. With α = 1 for one member and 0 for all others
    every number is exactly that member's, in any dtype of up to 32 bits: differences and sums are in float64, which
    rounds them only where a number of the base model is more than 2^28 times as large as the member's.
    """

    def summed(rows: RowBlock) -> Tensor:
        total = None
        for task, weight in task_vectors(rows, combination):
            total = task.mul_(weight) if total is None else total.add_(task, alpha=weight)
        assert total is not None
        return total

    yield from on_base(combination, summed)


def on_base(combination: Combination, merged: Callable[[RowBlock], Tensor]) -> Iterator[Tensor]:
    """Yield θ_0 + λ · `merged`(rows) by rows, in float64; rows that the base model lacks are averaged."""
    for rows in aligned(combination):
        if rows.base is None:
            yield average(rows, combination.weights)
        else:
            scale = 1.0 if combination.coefficients else combination.options["scale"]
            yield merged(rows).mul_(scale).add_(rows.base.double())


def task_vectors(rows: RowBlock, combination: Combination) -> Iterator[tuple[Tensor, float]]:
    """Yield (θ_e − θ_0, what it is multiplied by) of each member, in float64; of a member without the rows, 0.

    It is multiplied by α_e where there are coefficients, else by ω_e scaled to a mean of 1.
    """
    assert rows.base is not None
    base = rows.base.double()
    whole = sum(combination.weights) / len(combination.weights)
    factors = combination.coefficients or [weight / whole for weight in combination.weights]
    for part, factor in zip(rows.parts, factors, strict=True):
        yield (base.new_zeros(base.shape) if part is None else part.double() - base), factor
