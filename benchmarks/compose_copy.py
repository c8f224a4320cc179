"""Composing four experts to a mixture of 2.6 GB against `cp -r && sync` of what it writes, warm cache.

Composing flushes what it writes to disk, and `cp` does not: `sync FOLDER/*` flushes the copy's files, on the same file
system. Beside it: against the one SHA-256 that every byte of an expert goes through, on two threads and nothing else;
and with the trunk by RegMean, once, which computes much more than it copies.
"""

import hashlib
import os
import shutil
import subprocess
import threading
from functools import partial
from pathlib import Path

from benchmarks.alternating import Comparison, Setup, alternate, run
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

        def compose(trunk: str) -> None:
            registry.compose(names, out, Recipe(trunk=trunk, router="ridge"))

        def against(claim: str, trunk: str, other: partial[None], rounds: int, target: float | None = None) -> None:
            fresh, gone = partial(shutil.rmtree, out, True), partial(shutil.rmtree, to, True)
            note = f"{nbytes / 1e9:.1f} GB, trunk {trunk}"
            found.append(
                alternate(
                    claim,
                    partial(compose, trunk),
                    other,
                    rounds,
                    target=target,
                    warm_up=min(1, rounds - 1),
                    setup=Setup(before_ours=fresh, before_other=gone),
                    note=note,
                )
            )

        registry.compose(names, whole, Recipe(trunk="mean", router="ridge"))
        nbytes = sum(path.stat().st_size for path in whole.iterdir())
        against("compose against `cp -r && sync`", "mean", partial(copy, whole, to), 5, 1.2)
        against("compose against one SHA-256 a byte", "mean", partial(hash_once, nbytes), 2)
        against("compose against `cp -r && sync`", "regmean", partial(copy, whole, to), 1)
    return found


if __name__ == "__main__":
    run(measure)
