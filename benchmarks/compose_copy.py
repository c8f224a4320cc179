"""Composing four experts to a mixture of 2.6 GB against `cp -r` of what it writes, same file system, warm cache.

Beside it: against `cp -r` followed by a flush, since a composition is on disk when its command ends; against the two
SHA-256 that every byte of an expert goes through (its array's and its file's), on two threads and nothing else; and
with the trunk by RegMean, which computes much more than it copies.
"""

import hashlib
import os
import shutil
import subprocess
import threading
from functools import partial
from pathlib import Path

from benchmarks.alternating import Comparison, alternate, run
from benchmarks.random_experts import fill
from registry import Recipe, Registry

SHAPE = {"vocab_size": 32_000, "num_hidden_layers": 6}
EXPERTS = 4


def copy(folder: Path, to: Path, *, flush: bool) -> None:
    """Copy a folder, and have it on disk."""
    subprocess.run(["cp", "-r", str(folder), str(to)], check=True)
    if flush:
        for path in (*to.iterdir(), to):
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def hash_twice(nbytes: int) -> None:
    """Hash so many bytes on each of two threads."""
    data = memoryview(os.urandom(1 << 21))

    def one() -> None:
        state = hashlib.sha256()
        for start in range(0, nbytes, len(data)):
            state.update(data[: min(len(data), nbytes - start)])

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    home, names = fill(scratch, EXPERTS, **SHAPE)
    out, to, whole = scratch / "moe", scratch / "copy", scratch / "whole"
    found = []
    with Registry(home) as registry:

        def compose(trunk: str) -> None:
            registry.compose(names, out, Recipe(trunk=trunk))

        def against(claim: str, trunk: str, other: partial[None], target: float | None, note: str = "") -> None:
            fresh, gone = partial(shutil.rmtree, out, True), partial(shutil.rmtree, to, True)
            sides = (partial(compose, trunk), other)
            found.append(alternate(claim, *sides, 3, target=target, before_ours=fresh, before_other=gone, note=note))

        registry.compose(names, whole, Recipe(trunk="mean"))
        nbytes = sum(path.stat().st_size for path in whole.iterdir())
        size = f"{nbytes / 1e9:.1f} GB, trunk mean"
        plain, flushed = (partial(copy, whole, to, flush=flush) for flush in (False, True))
        against("compose against `cp -r`", "mean", plain, 1.25, size)
        against("compose against `cp -r` and a flush", "mean", flushed, None, size)
        against("compose against two SHA-256 a byte", "mean", partial(hash_twice, nbytes), None, size)
        against("compose by RegMean against `cp -r`", "regmean", plain, None, f"{nbytes / 1e9:.1f} GB")
    return found


if __name__ == "__main__":
    run(measure)
