"""How long `reg add-expert` takes to refuse a checkpoint of seven billion parameters, as a whole process.

    python benchmarks/refusals.py [--repeat 3]

The checkpoint's file is sparse: a genuine header, and of the weights only the rows that are compared with the base
model's. Each case spoils a copy of it in one way. Prints the fastest and the median time of each, and the time of
`reg --version`, which is what the program takes to start.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from registry import Registry
from registry.families import FAMILIES
from registry.registration.lineage import SAMPLE
from store.arrays import rows_per_block
from store.catalog import ArrayLink, NewVersion

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
Header = dict[str, dict[str, Any]]


def header_of(config: dict[str, Any]) -> tuple[Header, int]:
    """Return a safetensors header of all tensors in bfloat16, and the bytes of the weights."""
    family = FAMILIES[str(config["model_type"])]
    architecture = family.architecture(config)
    header: Header = {}
    end = 0
    for name, shape in (family.trunk_shapes(architecture) | family.mlp_shapes(architecture)).items():
        size = 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    return header, end


def write(folder: Path, config: dict[str, Any], header: Header, nbytes: int) -> None:
    """Write a sparse checkpoint whose compared rows are random."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + nbytes)
    draw = np.random.default_rng(0)
    for tensor in header.values():
        data = np.memmap(
            folder / "model.safetensors",
            dtype=np.uint16,
            mode="r+",
            offset=8 + len(text) + tensor["data_offsets"][0],
            shape=tuple(tensor["shape"]),
        )
        count, width = tensor["shape"][0], int(np.prod(tensor["shape"][1:], dtype=np.int64))
        rows = np.unique(np.linspace(0, count - 1, max(1, min(count, SAMPLE // width))).astype(np.int64))
        for row in rows:
            data[row] = (draw.standard_normal(data[row].shape).astype(np.float32).view(np.uint32) >> 16).astype("u2")


def register_zeros(home: Path, header: Header) -> None:
    """Register a base model of the same shape, sparse too, as nobody would: by writing its rows and empty chunks."""
    import zarr
    from zarr.storage import LocalStore

    family = FAMILIES["llama"]
    with Registry(home) as registry:
        links = []
        for number, (name, tensor) in enumerate(header.items()):
            digest, shape = f"{number:064x}", tuple(tensor["shape"])
            path = registry.home.arrays / digest[:2] / digest
            path.mkdir(parents=True)
            chunks = (rows_per_block(shape), *shape[1:])
            zarr.create_array(
                LocalStore(path),
                shape=shape,
                chunks=chunks,
                dtype="uint16",
                filters=None,
                compressors=None,
                attributes={"dtype": "bfloat16"},
            )
            for chunk in range(-(-shape[0] // chunks[0])):
                file = path / ".".join(["c", str(chunk), *["0"] * (len(shape) - 1)])
                with file.open("wb") as sparse:
                    sparse.truncate(2 * int(np.prod(chunks, dtype=np.int64)))
            nbytes = 2 * int(np.prod(shape, dtype=np.int64))
            links.append(ArrayLink("mlp" if ".mlp." in name else "trunk", name, digest, "bfloat16", shape, nbytes))
        content = {"family": "llama", "architecture": family.architecture(CONFIG).to_dict(), "weights": "0" * 64}
        parameters = sum(link.nbytes // 2 for link in links)
        registry.catalog.add_version(NewVersion("base", "base", "0" * 64, content, parameters, tuple(links)))


Case = Callable[[dict[str, Any], Header, Path], None]


def _adapter(_config: dict[str, Any], _header: Header, folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def _pickle(_config: dict[str, Any], _header: Header, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


CASES: dict[str, Case] = {
    "unrelated to the base model": lambda config, header, folder: None,
    "unknown family": lambda config, header, folder: config.update(model_type="mamba"),
    "no native host": lambda config, header, folder: config.update(mlp_bias=True),
    "quantized": lambda config, header, folder: config.update(quantization_config={"bits": 4}),
    "missing tensor": lambda config, header, folder: config.update(num_hidden_layers=33),
    "another shape": lambda config, header, folder: config.update(vocab_size=32001),
    "pickle weights": _pickle,
    "adapter beside it": _adapter,
}


def timed(command: list[str], expected: int, repeat: int) -> tuple[list[float], str]:
    """Run a command several times and return its times in seconds and what it said."""
    times, said = [], ""
    for _ in range(repeat):
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.monotonic() - start)
        assert done.returncode == expected, (command, done.returncode, done.stdout, done.stderr)
        said = done.stderr.splitlines()[0] if done.stderr else done.stdout.strip()
    return times, said


def main() -> None:
    """Write, register, refuse, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    reg = str(Path(sys.executable).with_name("reg"))
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        os.environ["REG_HOME"] = str(home)
        header, nbytes = header_of(CONFIG)
        print(f"{nbytes // 2:,} parameters, {len(header)} tensors")
        write(Path(scratch) / "whole", CONFIG, header, nbytes)
        register_zeros(home, header)
        times, _ = timed([reg, "--version"], 0, repeat)
        print(f"{'reg --version':30} {min(times):6.2f} s  median {statistics.median(times):6.2f} s")
        for name, spoil in CASES.items():
            folder = Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            (folder / "model.safetensors").hardlink_to(Path(scratch) / "whole" / "model.safetensors")
            config = dict(CONFIG)
            spoil(config, header, folder)
            (folder / "config.json").write_text(json.dumps(config))
            times, said = timed([reg, "add-expert", "expert", str(folder)], 1, repeat)
            said = said.replace(str(folder), "CKPT")
            print(f"{name:30} {min(times):6.2f} s  median {statistics.median(times):6.2f} s  {said[:100]}")
        assert not (home / "arrays" / "partial").exists()


if __name__ == "__main__":
    main()
