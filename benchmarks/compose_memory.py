"""Peak memory of composing experts of a 1- or 3-billion-parameter Llama, measured on the process that composes.

    python -m benchmarks.compose_memory [--scratch DIR]
    python -m benchmarks.compose_memory --full [--shape 1b|3b] [--experts 5] [--layers N] [--trunks regmean,mean,base]
                                        [--scratch DIR]

As a benchmark: six layers of the 1B shape, for two experts and for four, against 300 MB above `import torch` and one
layer's Gram workspace (two Grams of float64). In full: makes random experts of the shape of Llama-3.2-1B or 3B
(bfloat16, 2.5 or 6.4 GB each), registers them, composes them in a process of its own with some trunk methods, and
prints the largest resident set of each, beside that of a process that only imports torch; needs about 40 GB of disk
below the scratch folder. Linux only.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.alternating import MEGABYTE, Comparison, run
from benchmarks.random_experts import CONFIG, fill, make_checkpoint
from registry import PassSettings, Registry

SHAPES = {
    "1b": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "head_dim": 64},
    "3b": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128},
}
SMALL = {"vocab_size": 32_000, "num_hidden_layers": 6}
EXPERTS = 4
ROUNDS = {"mean": 2, "regmean": 1}
ALLOWED = 300 * MEGABYTE
MEASURED = """
import json, sys, time
from pathlib import Path
start = time.monotonic()
{body}
# VmHWM belongs to this program alone; ru_maxrss would begin with the memory of the process that started it.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
peak = int(status["VmHWM"].split()[0]) * 1024
print(json.dumps({{"seconds": time.monotonic() - start, "peak": peak}}))
"""


def measured(body: str) -> dict[str, float]:
    """Run Python code in a process of its own and return its wall time in seconds and its peak memory in bytes."""
    done = subprocess.run([sys.executable, "-c", MEASURED.format(body=body)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def composing(home: Path, names: list[str], out: Path, trunk: str) -> str:
    """Return the Python code that composes."""
    return (
        "from registry import Recipe, Registry\n"
        f"with Registry({str(home)!r}) as registry:\n"
        f"    registry.compose({names!r}, {str(out)!r}, Recipe(trunk={trunk!r}, router='ridge'), force=True)"
    )


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons of the peak above `import torch` with what it may be."""
    home, names = fill(scratch, EXPERTS, **SMALL)
    workspace = 2 * 8 * (CONFIG.hidden_size + 1) ** 2
    found = []
    for trunk, count in (("mean", 2), ("mean", EXPERTS), ("regmean", EXPERTS)):
        peaks, alone = [], []
        for _ in range(ROUNDS[trunk]):
            alone.append(measured("import torch")["peak"])
            peaks.append(measured(composing(home, names[:count], scratch / "moe", trunk))["peak"])
            shutil.rmtree(scratch / "moe")
        ours = tuple((peak - imports) / MEGABYTE for peak, imports in zip(peaks, alone, strict=True))
        other = ((ALLOWED + workspace) / MEGABYTE,) * len(ours)
        claim = f"compose's peak memory above `import torch` against {ALLOWED // MEGABYTE} MB and two Grams"
        most = int(max(peaks)), int(max(alone))
        found.append(Comparison(claim, ours, other, 1.0, "MB", *most, f"{count} experts, trunk {trunk}"))
    return found


def main() -> None:
    """Make, register, compose, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", required=True)
    parser.add_argument("--experts", type=int, default=5)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--layers", type=int, help="fewer for a quick look")
    parser.add_argument("--trunks", default="regmean,mean,base")
    parser.add_argument("--scratch", type=Path, help="default: a temporary folder")
    arguments = parser.parse_args()
    for key, value in SHAPES[arguments.shape].items():
        setattr(CONFIG, key, value)
    CONFIG.num_hidden_layers = arguments.layers or CONFIG.num_hidden_layers
    scratch = Path(tempfile.mkdtemp(prefix="reg-memory-", dir=arguments.scratch))
    try:
        text = scratch / "text.txt"
        text.write_text("to be or not to be that is the question " * 1000)
        names = [f"expert{number}" for number in range(arguments.experts)]
        with Registry(scratch / "home") as registry:
            for seed, name in enumerate(("base", *names)):
                folder = make_checkpoint(scratch / "checkpoint", seed)
                start = time.monotonic()
                if name == "base":
                    registry.add_base(name, folder)
                else:
                    registry.add_expert(
                        name, folder, data=[text], settings=PassSettings(1024, 256, 4), allow_unrelated=True
                    )
                print(f"registered {name} in {time.monotonic() - start:.0f} s", flush=True)
                shutil.rmtree(folder)
        rows = {"imports alone": measured("import numpy, sqlalchemy, torch, zarr, registry.composition.compose")}
        for trunk in arguments.trunks.split(","):
            rows[f"compose, trunk {trunk}"] = measured(composing(scratch / "home", names, scratch / "moe", trunk))
            shutil.rmtree(scratch / "moe")
        with Registry(scratch / "home") as registry:
            print(f"the plan's own estimate beyond the program: {registry.plan(names).peak_bytes / 1e9:.3f} GB")
        for name, row in rows.items():
            print(f"{name:24s} {row['seconds']:8.1f} s   peak {row['peak'] / 1e9:6.3f} GB")
        print(json.dumps({"experts": arguments.experts, "rows": rows}))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    if "--full" in sys.argv:
        main()
    else:
        run(measure)
