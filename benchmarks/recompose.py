"""Recomposing with another option into the same folder, against composing all of it.

Another `--lam` changes ridge routers alone, other `--weights` the routers and, but for the base model's, the trunk;
another `--temperature` of the default recipe changes the routers and the context layer.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.compose_copy import EXPERTS, SHAPE
from benchmarks.random_experts import fill
from registry import Recipe, Registry

TARGET = 0.1


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    home, names = fill(scratch, EXPERTS, **SHAPE)
    same, fresh = scratch / "same", scratch / "fresh"
    found = []
    with Registry(home) as registry:
        changes: dict[str, Iterator[dict[str, Any]]] = {
            "lam": cycle([{"lam": 0.1}, {"lam": 1.0}]),
            "weights": cycle([{"weights": {names[0]: 2.0}}, {"weights": {names[1]: 2.0}}]),
            "temperature": cycle([{"temperature": 0.5}, {"temperature": 2.0}]),
        }

        def ours(recipe: Recipe, what: str) -> None:
            registry.compose(names, same, recipe.replace(**next(changes[what])), force=True)

        def other(recipe: Recipe) -> None:
            registry.compose(names, fresh, recipe)

        recipes = {
            "lam": (Recipe(trunk="mean", router="ridge"), "trunk mean, router ridge", 3),
            "weights": (Recipe(trunk="base", router="ridge"), "trunk base, router ridge", 3),
            "temperature": (Recipe(), "the default recipe", 2),
        }
        for what, (recipe, label, rounds) in recipes.items():
            registry.compose(names, same, recipe, force=True)
            sides = (partial(ours, recipe, what), partial(other, recipe))
            claim = f"recompose with {'other' if what == 'weights' else 'another'} {what} against compose, {label}"
            gone = partial(shutil.rmtree, fresh, True)
            warm_up = 1 if rounds > 2 else 0
            found.append(
                alternate(claim, *sides, rounds, target=TARGET, warm_up=warm_up, setup=Setup(before_other=gone))
            )
    return found


if __name__ == "__main__":
    run(measure)
