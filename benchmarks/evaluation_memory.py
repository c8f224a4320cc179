"""Memory of `reg evaluate` of a mixture, at two sizes.

    python -m benchmarks.evaluation_memory [--layers 2,8] [--experts 3] [--windows 8] [--scratch DIR]

Makes random Llamas of hidden size 1024 and intermediate size 4096 in bfloat16, with this many layers, composes them by
the default router with the averaged trunk, and evaluates the folder on windows of 256 tokens of one domain, each time
in a process of its own: in float32 with the weights cast module by module, as folders are that are large for the free
memory; in bfloat16; and in float32 with the whole model cast at once, as small folders are. A thread samples anonymous
memory, which leaves out the pages of the files that are read. The slope is the difference of the peaks over the
difference of the folders' bytes. Linux only; needs about 0.5 GB a layer below the scratch folder.

*Measured* on two cores with AVX2:

| layers | folder, GB | float32 by module, GB | bfloat16, GB | float32 as a whole, GB |
|---|---|---|---|---|
| 2 | 0.47 | 1.94 | 1.28 | 2.53 |
| 8 | 0.99 | 2.64 | 1.89 | 4.38 |
| bytes a byte of the folder | | 1.36 | 1.19 | 3.62 |
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.random_experts import fill, text_of
from registry import Recipe, Registry

GIGABYTE = 10**9
SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}
WAYS = {
    "float32 by module": ("float32", 0.0),
    "bfloat16": ("bfloat16", 0.0),
    "float32 as a whole": ("float32", 1.0),
}
"""Way → dtype of the computation, share of the free memory that weights in float32 may take."""

EVALUATE = """
import sys, threading, time
from pathlib import Path
from registry import Registry, TestSettings
from registry.runtime import upcast
home, folder, text, windows, dtype, share = sys.argv[1:]
peak = 0
def watch():
    global peak
    while True:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        peak = max(peak, int(status["RssAnon"].split()[0]) * 1024)
        time.sleep(0.01)
upcast.WHOLE_SHARE = float(share)
threading.Thread(target=watch, daemon=True).start()
with Registry(home) as registry:
    registry.evaluate([folder], {"expert0": [text]}, TestSettings(windows=int(windows), dtype=dtype))
print(peak)
"""


def compose(scratch: Path, layers: int, experts: int) -> None:
    """Register experts of this many layers, and compose them into `moe`."""
    home, names = fill(scratch, experts, **SHAPE, num_hidden_layers=layers)
    with Registry(home) as registry:
        registry.compose(names, scratch / "moe", Recipe(trunk="mean"))
    (scratch / "test.txt").write_text(text_of(1) * 8, encoding="utf-8")


def measure(scratch: Path, layers: int, experts: int, windows: int) -> list[float]:
    """Return GB of the folder's weights, and of the peak of each way."""
    # A process of its own: `fill` keeps the shape that it was first given.
    code = f"from benchmarks.evaluation_memory import *; compose(Path({str(scratch)!r}), {layers}, {experts})"
    subprocess.run([sys.executable, "-c", code], check=True)
    sizes = [sum(file.stat().st_size for file in (scratch / "moe").glob("*.safetensors")) / GIGABYTE]
    for dtype, share in WAYS.values():
        words = [*(str(scratch / name) for name in ("home", "moe", "test.txt")), str(windows), dtype, str(share)]
        done = subprocess.run([sys.executable, "-c", EVALUATE, *words], stdout=subprocess.PIPE, text=True, check=True)
        sizes.append(int(done.stdout.split()[-1]) / GIGABYTE)
    return sizes


def main() -> None:
    """Print the table and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="2,8")
    parser.add_argument("--experts", type=int, default=3)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    heads = ("layers", "folder, GB", *(f"{way}, GB" for way in WAYS))
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    found = []
    for layers in map(int, arguments.layers.split(",")):
        scratch = Path(tempfile.mkdtemp(dir=arguments.scratch))
        try:
            found.append(measure(scratch, layers, arguments.experts, arguments.windows))
        finally:
            shutil.rmtree(scratch)
        print(f"| {layers} | {' | '.join(f'{size:.2f}' for size in found[-1])} |", flush=True)
    more = [last - first for first, last in zip(found[0], found[-1], strict=True)]
    if more[0] > 0:
        print(f"| bytes a byte of the folder | | {' | '.join(f'{peak / more[0]:.2f}' for peak in more[1:])} |")


if __name__ == "__main__":
    main()
