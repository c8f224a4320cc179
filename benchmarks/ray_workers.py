"""Two tasks of a Ray cluster, of one thread each, against one process of two threads: python -m benchmarks.ray_workers

Both sides collect the statistics of the same checkpoint on the same text, from its files to `statistics.safetensors`.
The cluster runs on this machine. `warm` leaves out the start of Ray and of its processes, which load the model in a
round that does not count; `from the start` has both, and on the other side a process that starts as well. The more
tokens, the less the start weighs. The files of both sides are compared at the end.
"""

import os
import shutil
import sys
from pathlib import Path

import torch

from benchmarks.alternating import SHORT, Comparison, Setup, alternate, run
from benchmarks.random_experts import CONFIG, make_checkpoint, text_of
from registry.distributed import connect
from registry.distributed.cluster import LOCAL
from registry.statistics.collect import collect_to
from registry.statistics.file import FILE_NAME
from registry.statistics.settings import PassSettings

ROUNDS = 5
WORKERS = 2
SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
TOKENS = (8_192, 24_576)
"""Calibration tokens of the two sizes; batches hold 16 windows of 256, so that 2 and 6 batches are divided by two."""


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons, of both sizes and of a whole command."""
    for key, value in SHAPE.items():
        setattr(CONFIG, key, value)
    checkpoint, text = make_checkpoint(scratch / "expert", 1), scratch / "text.txt"
    text.write_text(text_of(1), encoding="utf-8")
    here, there = scratch / "here", scratch / "there"
    found = []
    torch.set_num_threads(1)
    with connect(LOCAL) as cluster:
        assert cluster.slots >= WORKERS, f"this machine has room for {cluster.slots} tasks of one thread"
        for tokens in TOKENS[:1] if SHORT in os.environ else TOKENS:
            settings = PassSettings(tokens=tokens)

            def ours(settings: PassSettings = settings) -> None:
                torch.set_num_threads(1)
                collect_to(checkpoint, there, data=[text], settings=settings, cluster=cluster)

            def other(settings: PassSettings = settings) -> None:
                torch.set_num_threads(WORKERS)
                collect_to(checkpoint, here, data=[text], settings=settings)

            setup = Setup(lambda: shutil.rmtree(there, True), lambda: shutil.rmtree(here, True))
            claim = f"2 Ray tasks against 2 threads, {tokens:,} tokens, warm"
            compared = alternate(claim, ours, other, ROUNDS, setup=setup)
            same = (here / FILE_NAME).read_bytes() == (there / FILE_NAME).read_bytes()
            print(f"{claim}: the files are {'equal' if same else 'not equal'}", file=sys.stderr)
            found.append(compared)
    reg = [str(Path(sys.executable).with_name("reg")), "collect", str(checkpoint), "--data", str(text)]
    reg += ["--tokens", str(TOKENS[-1])]
    found.append(
        alternate(
            f"2 Ray tasks against 2 threads, {TOKENS[-1]:,} tokens, from the start",
            ["env", "OMP_NUM_THREADS=1", *reg, "--out", str(there), "--ray", LOCAL],
            ["env", f"OMP_NUM_THREADS={WORKERS}", *reg, "--out", str(here)],
            min(ROUNDS, 3),
            setup=setup,
        )
    )
    return found


if __name__ == "__main__":
    run(measure)
