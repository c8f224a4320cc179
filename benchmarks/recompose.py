"""Recomposing with another `--lam` or other `--weights` into the same folder, against composing all of it."""

import shutil
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.compose_copy import EXPERTS, SHAPE
from benchmarks.random_experts import fill
from registry import Recipe, Registry

TARGET = 0.05


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    home, names = fill(scratch, EXPERTS, **SHAPE)
    same, fresh = scratch / "same", scratch / "fresh"
    found = []
    with Registry(home) as registry:
        lams, weights = cycle([0.1, 1.0]), cycle([{names[0]: 2.0}, {names[1]: 2.0}])

        def ours(trunk: str, what: str) -> None:
            recipe = (
                Recipe(trunk=trunk, router="ridge", lam=next(lams))
                if what == "lam"
                else Recipe(trunk=trunk, router="ridge", weights=next(weights))
            )
            registry.compose(names, same, recipe, force=True)

        def other(trunk: str) -> None:
            registry.compose(names, fresh, Recipe(trunk=trunk, router="ridge"))

        for trunk, what in (("mean", "lam"), ("base", "weights")):
            registry.compose(names, same, Recipe(trunk=trunk, router="ridge"), force=True)
            sides = (partial(ours, trunk, what), partial(other, trunk))
            claim = f"recompose with another {what} against compose, trunk {trunk}"
            gone = partial(shutil.rmtree, fresh, True)
            found.append(alternate(claim, *sides, 3, target=TARGET, setup=Setup(before_other=gone)))
    return found


if __name__ == "__main__":
    run(measure)
