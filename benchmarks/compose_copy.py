"""Composing four experts to a mixture of 2.6 GB against `cp -r && sync` of what it writes, warm cache.

Composing flushes what it writes to disk, and `cp` does not: `sync FOLDER/*` flushes the copy's files, on the same file
system. Beside it: against the one SHA-256 that every byte of an expert goes through, on two threads and nothing else;
with the trunk by RegMean, which computes much more than it copies, for the first time (products of weights and Grams
are taken), with weights that were not used before (sums and solves are made from products that are there) and
afterwards; and by the default recipe, which adds two layers and head maps, the first time and afterwards.
"""

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.alternating import SHORT, Comparison, Setup, alternate, run
from benchmarks.random_experts import fill
from registry import Recipe, Registry

SHAPE = {"vocab_size": 32_000, "num_hidden_layers": 6}
EXPERTS = 4


def copy(folder: Path, to: Path) -> None:
    """Copy a folder, and flush the copy's files to disk."""
    subprocess.run(["cp", "-r", str(folder), str(to)], check=True)
    subprocess.run(["sync", *map(str, sorted(to.iterdir()))], check=True)


def hash_once(nbytes: int) -> None:
    """Hash so many bytes, half of them on each of two threads."""
    data = memoryview(os.urandom(1 << 21))

    def one() -> None:
        state = hashlib.sha256()
        for start in range(0, nbytes // 2, len(data)):
            state.update(data[: min(len(data), nbytes // 2 - start)])

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    home, names = fill(scratch, EXPERTS, **SHAPE)
    out, to, whole = scratch / "moe", scratch / "copy", scratch / "whole"
    found: list[Comparison] = []
    with Registry(home) as registry:
        numbers = count(1)

        def compose(recipe: Recipe) -> None:
            registry.compose(names, out, recipe)

        def compose_weighted(recipe: Recipe) -> None:
            compose(recipe.replace(weights={names[0]: 1.5 + next(numbers)}))

        def against(
            claim: str,
            note: str,
            recipe: Recipe,
            other: partial[None],
            rounds: int,
            target: float | None = None,
            ours: Callable[[Recipe], None] = compose,
        ) -> None:
            fresh, gone = partial(shutil.rmtree, out, True), partial(shutil.rmtree, to, True)
            found.append(
                alternate(
                    claim,
                    partial(ours, recipe),
                    other,
                    rounds,
                    target=target,
                    warm_up=1 if rounds > 2 else 0,
                    setup=Setup(before_ours=fresh, before_other=gone),
                    note=f"{nbytes / 1e9:.1f} GB, {note}",
                )
            )

        def made(recipe: Recipe) -> int:
            shutil.rmtree(whole, True)
            registry.compose(names, whole, recipe)
            return sum(path.stat().st_size for path in whole.iterdir())

        claim = "compose against `cp -r && sync`"
        mean, regmean = Recipe(trunk="mean", router="ridge"), Recipe(router="ridge")
        nbytes = made(mean)
        against(claim, "trunk mean, router ridge", mean, partial(copy, whole, to), 5, 1.2)
        against("compose against one SHA-256 a byte", "trunk mean, router ridge", mean, partial(hash_once, nbytes), 2)
        against(claim, "trunk regmean, router ridge, the first time", regmean, partial(copy, whole, to), 1)
        copied = partial(copy, whole, to)
        against(claim, "trunk regmean, router ridge, other weights", regmean, copied, 3, 3.0, compose_weighted)
        against(claim, "trunk regmean, router ridge, composed before", regmean, copied, 3, 3.0)
        if SHORT in os.environ:
            return found
        nbytes = made(Recipe())
        shutil.rmtree(home / "cache")  # of products, sums and maps: all that earlier compositions left
        against(claim, "the default recipe, the first time", Recipe(), partial(copy, whole, to), 1)
        against(claim, "the default recipe, composed before", Recipe(), partial(copy, whole, to), 2)
    return found


if __name__ == "__main__":
    run(measure)
