"""The base model's tensors, unchanged."""

from collections.abc import Iterator

from torch import Tensor

from registry.maths.trunk.combination import Combination, aligned, average


def combine(combination: Combination) -> Iterator[Tensor]:
    """Yield the base model's rows, exactly; rows that it lacks are averaged over the members."""
    for rows in aligned(combination):
        yield average(rows, combination.weights) if rows.base is None else rows.base
