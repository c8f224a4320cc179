"""The average of the members' tensors (BTX §3.2; DUME §3.1)."""

from collections.abc import Iterator

from torch import Tensor

from registry.maths.trunk.combination import Combination, aligned, average, tiles


def combine(combination: Combination) -> Iterator[Tensor]:
    """Yield Σ_e ω_e θ_e / Σ_e ω_e by rows, in float64. A single member is returned exactly."""
    for rows in aligned(combination):
        for few in tiles(rows):
            yield average(few, combination.weights)
