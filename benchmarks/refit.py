"""Time and peak memory of a refit (`--refine-mlp`), at two sizes, with the slope by layers.

    python -m benchmarks.refit [--scratch DIR]
    python -m benchmarks.refit --full [--shape small|135m] [--layers 30] [--experts 5] [--tokens 24576]
                               [--options '{"router": "ridge"}'] [--scratch DIR]

As a benchmark: random experts of both shapes at 2 and 4 layers. The peak of the composing process above what it has
after its imports is compared with one layer's weights and 500 MB; the time of five experts of SmolLM2-135M's shape and
depth, extrapolated by the slope, with 10 minutes. In full: one shape, at each of the depths of `--layers` (2,4,30).
Experts are registered by counting tokens, which needs no pass. Linux only.
"""

import argparse
import json
import random
import shutil
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.alternating import MEGABYTE, Comparison, run
from benchmarks.random_experts import CONFIG, make_checkpoint
from registry import PassSettings, Registry

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": 4096,
        "tie_word_embeddings": False,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "tie_word_embeddings": False,
    },
}
DEPTH, EXPERTS, TOKENS, WINDOW = 30, 5, 24_576, 256
LAYERS = (2, 4)
ALLOWED = 500 * MEGABYTE
LIMIT = 600.0
"""Seconds that five experts of the larger shape and 30 layers may take."""

MEASURED = """
import json, sys, time
import torch, transformers.models.llama.modeling_llama, zarr
import registry.composition.compose
from pathlib import Path
from registry import Recipe, Registry
def peak():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(status["VmHWM"].split()[0]) * 1024
imports, start, before = peak(), time.monotonic(), time.process_time()
home, out, names, recipe = json.loads(sys.argv[1])
with Registry(home) as registry:
    plan = registry.compose(names, out, Recipe(**recipe), force=True)
print(json.dumps({
    "seconds": time.monotonic() - start,
    "processor": time.process_time() - before,
    "imports": imports,
    "above": peak() - imports,
    "estimate": plan.peak_bytes,
}))
"""


def fill(folder: Path, shape: str, layers: int, experts: int, tokens: int) -> tuple[Path, list[str]]:
    """Register random experts with kept tokens of their own; return the home and their names."""
    for key, value in SHAPES[shape].items():
        setattr(CONFIG, key, value)
    CONFIG.num_hidden_layers = layers
    names, settings = [f"expert{number}" for number in range(experts)], PassSettings(tokens, WINDOW, sites="counts")
    with Registry(folder / "home") as registry:
        for number, name in enumerate(names):
            draw, text = random.Random(number), folder / f"{name}.txt"
            letters = string.ascii_lowercase[3 * number % 18 :][:9]
            text.write_text(" ".join("".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(2 * tokens)))
            checkpoint = make_checkpoint(folder / "checkpoint", number)
            registry.add_expert(
                name, checkpoint, data=[text], settings=settings, keep_calibration=True, allow_unrelated=True
            )
            shutil.rmtree(checkpoint)
    return folder / "home", names


def refitted(
    scratch: Path, shape: str, layers: int, experts: int, tokens: int, options: dict[str, Any]
) -> dict[str, float]:
    """Return the seconds and the bytes of composing random experts with a refit, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=scratch) as above:
        home, names = fill(Path(above), shape, layers, experts, tokens)
        recipe = {"trunk": "mean", "refine_mlp": True} | options
        words = [sys.executable, "-c", MEASURED, json.dumps([str(home), str(Path(above, "moe")), names, recipe])]
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def layer_bytes(shape: str) -> int:
    """Return the size of one layer's linear maps in float32."""
    sizes = SHAPES[shape]
    size, width = sizes["hidden_size"], sizes["head_dim"]
    attention = 2 * size * width * (sizes["num_attention_heads"] + sizes["num_key_value_heads"])
    return int(4 * (attention + 3 * size * sizes["intermediate_size"]))


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons of both shapes."""
    found, claim = [], "refit's peak memory above its imports against one layer's weights and 500 MB"
    for shape in SHAPES:
        rows = [refitted(scratch, shape, layers, EXPERTS, TOKENS, {}) for layers in LAYERS]
        allowed = (ALLOWED + layer_bytes(shape)) / MEGABYTE
        above = tuple(row["above"] / MEGABYTE for row in rows)
        slope = (rows[1]["seconds"] - rows[0]["seconds"]) / (LAYERS[1] - LAYERS[0])
        note = f"{EXPERTS} experts of shape {shape}, {LAYERS[0]} and {LAYERS[1]} layers: {slope:.1f} s a layer"
        most = int(max(row["above"] + row["imports"] for row in rows))
        found.append(Comparison(claim, above, (allowed,) * len(above), 1.0, "MB", most, note=note))
        if shape == "135m":
            seconds = rows[0]["seconds"] + (DEPTH - LAYERS[0]) * slope
            claim = f"refit of {EXPERTS} experts of {DEPTH} layers, by the slope, against 10 minutes"
            found.append(Comparison(claim, (seconds,), (LIMIT,), 1.0, note=note))
    return found


def main() -> None:
    """Register, compose, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--layers", default=str(DEPTH), help="depths, by commas")
    parser.add_argument("--experts", type=int, default=EXPERTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--options", type=json.loads, default={}, help="fields of the recipe, as JSON")
    parser.add_argument("--scratch", type=Path, help="default: a temporary folder")
    arguments = parser.parse_args()
    allowed = ALLOWED + layer_bytes(arguments.shape)
    for layers in map(int, arguments.layers.split(",")):
        row = refitted(
            arguments.scratch, arguments.shape, layers, arguments.experts, arguments.tokens, arguments.options
        )
        megabytes = {name: f"{row[name] / MEGABYTE:,.0f} MB" for name in ("imports", "above", "estimate")}
        print(
            f"{arguments.shape}, {layers} layers: {row['seconds']:.1f} s ({row['processor']:.1f} s of processors), "
            f"peak {megabytes['above']} above {megabytes['imports']} of imports; estimated {megabytes['estimate']}, "
            f"allowed {allowed / MEGABYTE:,.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    if "--full" in sys.argv:
        main()
    else:
        run(measure)
