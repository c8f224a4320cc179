"""Task arithmetic: the base model plus the scaled sum of task vectors (Ilharco et al. 2022, §2; MergeME §3.1.2)."""

from collections.abc import Callable, Iterator

from torch import Tensor

from registry.maths.trunk.combination import Combination, RowBlock, aligned, average


def task_arithmetic(combination: Combination) -> Iterator[Tensor]:
    """Yield θ_0 + λ Σ_e ω_e (θ_e − θ_0), the weights ω scaled to a mean of 1.

    Option `scale` is λ.
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
            yield merged(rows).mul_(combination.options["scale"]).add_(rows.base.double())


def task_vectors(rows: RowBlock, combination: Combination) -> Iterator[tuple[Tensor, float]]:
    """Yield (θ_e − θ_0, ω_e scaled to a mean of 1) of each member, in float64; of a member without the rows, 0."""
    assert rows.base is not None
    base = rows.base.double()
    whole = sum(combination.weights) / len(combination.weights)
    for part, weight in zip(rows.parts, combination.weights, strict=True):
        yield (base.new_zeros(base.shape) if part is None else part.double() - base), weight / whole
