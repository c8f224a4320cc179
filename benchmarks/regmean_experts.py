"""Composing eight experts with the default trunk, RegMean, against two: the time beyond copying what is written.

The sums of the statistics grow with the number of experts; the solve, which takes longest, does not. With weights that
were not used before, sums and solves are made again from the members' products, which are there. A subset that was
composed before has its solved maps in the cache.
"""

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.alternating import Comparison, run
from benchmarks.compose_copy import copy
from benchmarks.random_experts import fill
from registry import Recipe, Registry

SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
FEW, MANY = 2, 8
ROUNDS = 3
TARGET = 1.2


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons, and how the whole of either compares with the copy."""
    home, names = fill(scratch, MANY, **SHAPE)
    with Registry(home) as registry:
        return [
            *compared(registry, names, scratch, "composed before", [{}] * (ROUNDS + 1)),
            *compared(registry, names, scratch, "other weights", [{names[0]: 1.5 + n} for n in range(ROUNDS + 1)]),
        ]


def compared(
    registry: Registry, names: list[str], scratch: Path, what: str, weights: Sequence[Mapping[str, float]]
) -> list[Comparison]:
    """Return the comparisons of compositions with the weights of each round, of which the first warms up."""
    whole: dict[int, list[float]] = {FEW: [], MANY: []}
    copies: dict[int, list[float]] = {FEW: [], MANY: []}
    for number, given in enumerate(weights):
        for count in (FEW, MANY):
            times = composed_and_copied(registry, names[:count], scratch, Recipe(router="ridge", weights=given))
            if number:
                whole[count].append(times[0])
                copies[count].append(times[1])
    note = f"H = {SHAPE['hidden_size']:,}, {SHAPE['num_hidden_layers']} layers, {what}"
    beyond = {
        count: tuple(seconds - statistics.median(copies[count]) for seconds in whole[count]) for count in (FEW, MANY)
    }
    claim = f"compose beyond the copying, trunk regmean: {MANY} experts against {FEW}"
    return [
        Comparison(claim, beyond[MANY], beyond[FEW], TARGET, note=note),
        *(
            Comparison(
                f"compose {count} experts, trunk regmean, against `cp -r` and `sync`",
                tuple(whole[count]),
                tuple(copies[count]),
                note=note,
            )
            for count in (FEW, MANY)
        ),
    ]


def composed_and_copied(registry: Registry, names: list[str], scratch: Path, recipe: Recipe) -> tuple[float, float]:
    """Return how long composing takes, and copying what it wrote, in seconds."""
    out, to, times = scratch / "moe", scratch / "copy", []
    for work in (lambda: registry.compose(names, out, recipe), lambda: copy(out, to)):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    shutil.rmtree(out)
    shutil.rmtree(to)
    return times[0], times[1]


if __name__ == "__main__":
    run(measure)
