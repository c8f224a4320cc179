"""Registering experts larger than memory: a Llama of the shape of 13 billion parameters, read layer by layer.

    python -m benchmarks.onloading [--layers 4,8] [--tokens 512] [--max-memory 6GiB] [--scratch DIR]

Makes a bfloat16 checkpoint of hidden size 5120, intermediate size 13824 and 40 heads for each number of layers, as
sparse files: a few rows of every matrix are noise, the rest are zeros that take no disk. Each registers in a process
of its own under `--max-memory`, which a thread of the process samples: resident memory by step, and at the end of
every layer. The slope over layers is that of a line through the latter; between two sizes it is the difference of the
peaks over the layers between them. Then, on a model that fits, both ways of the pass are timed alternately and their
statistics compared. Linux only; needs about 1.5 GB of disk a layer below the scratch folder.

*Measured* on a processor of two cores with AVX2, which computes bfloat16 weights in float32: peaks of resident memory
in GB. A layer's weights are 0.63 GB.

| layers | peak | hashing | collecting | storing | by layer, last the head | seconds |
|---|---|---|---|---|---|---|
| 4 | 2.25 | 1.07 | 2.25 | 1.33 | 2.25, 2.25, 2.25, 2.25, 0.92 | 49 |
| 8 | 2.26 | 1.10 | 2.26 | 1.90 | 2.25, 2.26, 2.26, 2.25, 2.26, 2.26, 2.26, 2.26, 0.94 | 177 |

Between the two, +1.7 MB a layer. Layer by layer took 0.93 of the time of the whole pass (median of 3; 0.50 to 1.35).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig

from benchmarks.random_experts import save_tokenizer
from cli.options import Size
from registry import PassSettings, Registry
from registry.checkpoint import Checkpoint
from registry.families import FAMILIES
from registry.io.safetensors_file import Stream, head, in_order
from registry.io.torch_blocks import to_block
from registry.progress import Advance, silent
from registry.runtime.upcast import load_for_pass
from registry.statistics import layer_pass
from registry.statistics.collect import text_calibration
from registry.statistics.forward_pass import take_statistics

SHAPE_13B = {
    "vocab_size": 32_000,
    "hidden_size": 5120,
    "intermediate_size": 13_824,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "head_dim": 128,
}
FITS = SHAPE_13B | {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
}
NOISY_ROWS = 64
TEXT = "to be or not to be that is the question whether tis nobler in the mind to suffer " * 400
ROUNDS = 3


def make_sparse(folder: Path, layers: int, shape: dict[str, int]) -> Path:
    """Write a checkpoint, one shard a layer and one for the rest, whose files are mostly holes."""
    folder.mkdir(parents=True)
    sizes: dict[str, Any] = {**shape}
    config = LlamaConfig(
        **sizes,
        num_hidden_layers=layers,
        max_position_embeddings=4096,
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=0,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    save_tokenizer(folder)
    family = FAMILIES["llama"]
    architecture = family.architecture(config.to_dict())
    shapes = family.trunk_shapes(architecture) | family.mlp_shapes(architecture)
    shards: dict[str, list[Stream]] = {}
    for name, size in shapes.items():
        layer = name.split(".")[2] if ".layers." in name else "rest"
        shards.setdefault(f"model-{layer}.safetensors", []).append(Stream(name, "bfloat16", size, list))
    draw = torch.Generator().manual_seed(layers)
    for file, streams in shards.items():
        ordered = in_order(streams)
        with (folder / file).open("wb") as out:
            out.write(head(ordered))
            for stream in ordered:
                begin, rows = out.tell(), min(NOISY_ROWS, stream.shape[0])
                noise = torch.empty((rows, *stream.shape[1:]), dtype=torch.bfloat16)
                if "norm" in stream.name:
                    noise = torch.ones(stream.shape, dtype=torch.bfloat16)
                else:
                    noise.normal_(0, 0.05, generator=draw)
                out.write(to_block(noise).data.cast("B"))
                out.seek(begin + stream.nbytes)
            out.truncate()
    weight_map = {stream.name: file for file, streams in shards.items() for stream in streams}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def resident() -> int:
    """Return the resident bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


class Sampler:
    """Peaks of the resident memory: by step of the registration, and by layer of the pass."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = {}
        self.layers: list[int] = []
        self._step, self._layer_peak, self._stopped = "opening", 0, threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while not self._stopped.wait(0.02):
            self.note()

    def note(self) -> None:
        """Take one sample."""
        now = resident()
        peak = self.steps.setdefault(self._step, [0, time.monotonic()])
        peak[0] = max(peak[0], now)
        self._layer_peak = max(self._layer_peak, now)

    @contextmanager
    def progress(self, label: str, total: int, unit: str) -> Iterator[Advance]:
        """Report progress: a step of its own from now on, unless it is a remark."""
        if not unit:
            yield lambda amount: None
            return
        self._step = label
        self.note()
        yield lambda amount: None
        self._step = f"after {label}"
        self.note()

    def end_layer(self) -> None:
        """Note the peak since the last layer ended."""
        self.note()
        self.layers.append(self._layer_peak)
        self._layer_peak = 0


def register(folder: Path, home: Path, text: Path, tokens: int, max_memory: int) -> None:
    """Register a checkpoint in this process, and print the measurements as JSON."""
    sampler, save = Sampler(), layer_pass._LayerPass._save

    def noted(self: Any, name: str, sums: Any) -> Any:
        saved = save(self, name, sums)
        sampler.end_layer()
        return saved

    layer_pass._LayerPass._save = noted  # type: ignore[method-assign]
    start = time.monotonic()
    settings = PassSettings(tokens=tokens, batch_size=1, max_memory=max_memory, device="cpu")
    with Registry(home, progress=sampler.progress) as registry:
        registry.add_expert("large", folder, data=[text], settings=settings)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    print(
        json.dumps(
            {
                "seconds": time.monotonic() - start,
                "peak": int(status["VmHWM"].split()[0]) * 1024,
                "steps": {name: peak for name, (peak, _) in sampler.steps.items()},
                "layers": sampler.layers,
            }
        )
    )


def slope(values: list[int]) -> float:
    """Return the slope of a line through values, least squares."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    return sum((x - middle) * (y - mean) for x, y in enumerate(values)) / sum(
        (x - middle) ** 2 for x in range(len(values))
    )


def compare_times(scratch: Path, text: Path) -> None:
    """Time both ways of the pass alternately on a model that fits, and print the ratio."""
    checkpoint = Checkpoint(make_sparse(scratch / "fits", 8, FITS))
    settings = PassSettings(tokens=4096, device="cpu")
    calibration = text_calibration(checkpoint, [text], settings)
    assert calibration is not None
    seconds: dict[str, list[float]] = {"whole": [], "layer by layer": []}
    for _ in range(ROUNDS):
        start = time.monotonic()
        model = load_for_pass(checkpoint.folder, settings.dtype, settings.device)
        whole = take_statistics(checkpoint, "0" * 64, model, calibration, settings, progress=silent)
        seconds["whole"].append(time.monotonic() - start)
        del model
        start = time.monotonic()
        by_layer = layer_pass.take_statistics_by_layer(
            checkpoint, "0" * 64, calibration, settings, partial=scratch / "partial", progress=silent
        )
        seconds["layer by layer"].append(time.monotonic() - start)
        assert by_layer == whole
    for name, values in seconds.items():
        print(f"{name}: {', '.join(f'{value:.2f}' for value in values)} s")
    ratios = [ours / other for ours, other in zip(seconds["layer by layer"], seconds["whole"], strict=True)]
    print(f"time layer by layer / whole, median of {ROUNDS}: {median(ratios):.2f} (statistics equal)")


def main() -> None:
    """Make, register, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="4,8")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--max-memory", default="6GiB")
    parser.add_argument("--scratch", type=Path, help="default: a temporary folder")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    limit = Size().convert(arguments.max_memory, None, None)
    if arguments.one is not None:
        folder, work = arguments.one
        register(folder, work / "home", work / "text.txt", arguments.tokens, limit)
        return
    scratch = Path(tempfile.mkdtemp(prefix="reg-onloading-", dir=arguments.scratch))
    peaks: dict[int, int] = {}
    try:
        text = scratch / "text.txt"
        text.write_text(TEXT, encoding="utf-8")
        for layers in map(int, arguments.layers.split(",")):
            folder = make_sparse(scratch / "checkpoint", layers, SHAPE_13B)
            command = [sys.executable, "-m", "benchmarks.onloading", "--one", str(folder), str(scratch)]
            command += ["--tokens", str(arguments.tokens), "--max-memory", arguments.max_memory]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            row = json.loads(done.stdout.splitlines()[-1])
            peaks[layers] = row["peak"]
            print(f"{layers} layers: {row['seconds']:.0f} s, peak {row['peak'] / 1e9:.2f} GB", flush=True)
            print("  GB by step:", ", ".join(f"{name} {peak / 1e9:.2f}" for name, peak in row["steps"].items()))
            print("  GB by layer:", ", ".join(f"{peak / 1e9:.2f}" for peak in row["layers"]), flush=True)
            print(f"  slope: {slope(row['layers'][:layers]) / 1e6:+.1f} MB a layer", flush=True)
            assert row["peak"] < limit
            shutil.rmtree(folder)
            shutil.rmtree(scratch / "home")
        if len(peaks) > 1:
            (few, most), (least, largest) = (min(peaks), max(peaks)), (peaks[min(peaks)], peaks[max(peaks)])
            print(f"between {few} and {most} layers: {(largest - least) / (most - few) / 1e6:+.1f} MB a layer")
        compare_times(scratch, text)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
