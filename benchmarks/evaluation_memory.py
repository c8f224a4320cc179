"""Peak memory and time of `reg evaluate` of a mixture, at two sizes.

    python -m benchmarks.evaluation_memory [--layers 2,6] [--experts 3] [--windows 16] [--scratch DIR]

Makes random Llamas of hidden size 1024 and intermediate size 4096 in bfloat16, with this many layers, composes them by
the default router with the averaged trunk, and evaluates the folder in a process of its own: windows of 256 tokens of
one domain, the folder alone, then with perfect routing, averaged weights, base model and experts. The slope is the
difference of the peaks over the difference of the folders' bytes. Linux only; needs about 0.5 GB of disk a layer below
the scratch folder.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.compose_memory import measured
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


def evaluating(home: Path, folder: Path, text: Path, windows: int, *, all_rows: bool) -> str:
    """Return the Python code that evaluates a folder on the text of an expert."""
    return (
        "from registry import Registry, TestSettings\n"
        f"with Registry({str(home)!r}) as registry:\n"
        f"    registry.evaluate([{str(folder)!r}], {{'expert0': [{str(text)!r}]}}, TestSettings(windows={windows}), "
        f"baselines={all_rows}, oracle={all_rows})"
    )


def measure(scratch: Path, layers: int, experts: int, windows: int) -> list[tuple[str, int, dict[str, float]]]:
    """Return (rows, bytes of the folder's weights, seconds and peak) of evaluations of one size."""
    home, names = fill(scratch, experts, **SHAPE, num_hidden_layers=layers)
    with Registry(home) as registry:
        registry.compose(names, scratch / "moe", Recipe(trunk="mean"))
    text = scratch / "test.txt"
    text.write_text(text_of(1) * 8, encoding="utf-8")
    nbytes = sum(file.stat().st_size for file in (scratch / "moe").glob("*.safetensors"))
    return [
        (rows, nbytes, measured(evaluating(home, scratch / "moe", text, windows, all_rows=rows == "all")))
        for rows in ("folder", "all")
    ]


def main() -> None:
    """Print the table and the slope."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="2,6")
    parser.add_argument("--experts", type=int, default=3)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    print("| layers | rows | folder, GB | peak, GB | seconds |\n|---|---|---|---|---|")
    points = []
    for layers in map(int, arguments.layers.split(",")):
        scratch = Path(tempfile.mkdtemp(dir=arguments.scratch))
        # A process of its own: what it registers would stay in this one's memory.
        code = (
            "from pathlib import Path; from benchmarks.evaluation_memory import *\n"
            f"for rows, nbytes, found in measure(Path({str(scratch)!r}), {layers}, {arguments.experts}, "
            f"{arguments.windows}): print(rows, nbytes, found['peak'], found['seconds'])"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        shutil.rmtree(scratch)
        if done.returncode:
            sys.exit(done.returncode)
        for rows, nbytes, peak, seconds in (line.split() for line in done.stdout.splitlines()):
            size, most = int(nbytes) / GIGABYTE, float(peak) / GIGABYTE
            print(f"| {layers} | {rows} | {size:.2f} | {most:.2f} | {float(seconds):.0f} |", flush=True)
            points += [(size, most)] if rows == "folder" else []
    (first, less), (last, more) = points[0], points[-1]
    if last > first:
        print(f"\npeak: {(more - less) / (last - first):.2f} bytes a byte of the folder")


if __name__ == "__main__":
    main()
