"""The parts of the tables, and how they run: some at a time, each after those that it needs."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.papers import curves, dume, flexolmo, hetero, mergeme, simoe, soups, statistics_curves
from benchmarks.papers.bench import Bench, Figures

CHAINS: tuple[Mapping[str, Callable[[Bench], Figures]], ...] = (
    flexolmo.PARTS,
    {**dume.PARTS, **curves.PARTS, **mergeme.PARTS, **flexolmo.SHARED},
    simoe.PARTS,
    flexolmo.UNRESTRICTED,
    soups.PARTS,
    statistics_curves.PARTS,
    hetero.PARTS,
)
"""Parts that share a registry, in order: name → what runs it. The longest chain is first."""

PARTS = {name: run for chain in CHAINS for name, run in chain.items()}


def run_parts(names: Iterable[str], bench: Bench, results: Path, jobs: int) -> None:
    """Run parts, and write the figures of each to RESULTS/<name>.json.

    A small model gains little from a second thread, so that parts side by side, a thread each, take less time than one
    after the other on all threads.

    Args:
        names: keys of `PARTS`.
        bench: where everything is.
        results: an existing folder.
        jobs: chains at a time; the cores of the machine are shared among them.
    """
    wanted = set(names)
    chains = [own for chain in CHAINS if (own := [name for name in chain if name in wanted])]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of the processes that begin below
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done in [pool.submit(_run_chain, chain, bench, results, threads) for chain in chains]:
            done.result()


def _run_chain(names: Iterable[str], bench: Bench, results: Path, threads: int) -> None:
    for name in names:
        print(f"{name} …", flush=True)
        wall, processor = time.perf_counter(), time.process_time()
        figures = PARTS[name](bench)
        size = {
            "tokens": bench.tokens,
            "batch": bench.batch,
            "lr": bench.lr,
            "mixed_batch": bench.mixed_batch,
            "mixed_lr": bench.mixed_lr,
            "windows": bench.windows,
            "steps": bench.steps,
            "seeds": bench.seeds,
        }
        seconds = {
            "wall": time.perf_counter() - wall,
            "processor": time.process_time() - processor,
            "threads": threads,
        }
        kept = figures | {"size": size, "seconds": seconds}
        (results / f"{name}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
