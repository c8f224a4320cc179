"""Arrays in a bucket against arrays on the disk: register, compose and verify the same bytes, side by side, as ratios.

    python -m benchmarks.storage [--rounds 3] [--hidden 512] [--layers 4]

The bucket is that of a server on this machine (moto, the protocol of S3 over loopback, in one process of Python), which
is slower than a real one in bytes per second and quicker in its first byte. So the ratios say what the program adds and
what that server costs, not what a network does. Arrays on the disk are read by zarr as well, whose chunks nobody checks
before. Prints one line of JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import zarr
from obstore.store import LocalStore
from zarr.storage import ObjectStore

from benchmarks.random_experts import CONFIG, make_checkpoint, text_of
from registry import PassSettings, Registry
from store.arrays import FolderArrays, new_hash
from tests.s3_server import start_s3, stop_s3

SETTINGS = PassSettings(tokens=256, seq_len=128, batch_size=2)
EXPERTS = 3


def measure_storage(scratch: Path, rounds: int) -> dict[str, object]:
    """Return seconds on the disk and in the bucket for each step, with the ratio of their medians."""
    server = start_s3()
    os.environ.update(server.environment)
    try:
        folders, texts = [], []
        for number in range(EXPERTS):
            folders.append(make_checkpoint(scratch / f"expert{number}", number))
            texts.append(scratch / f"expert{number}.txt")
            texts[-1].write_text(text_of(number), encoding="utf-8")
        steps: dict[str, dict[str, list[float]]] = {}
        nbytes = 0
        for number in range(rounds):
            for where in ("disk", "bucket") if number % 2 else ("bucket", "disk"):
                home = scratch / where
                arrays = f"s3://{server.new_bucket()}/team" if where == "bucket" else None
                with Registry(home, arrays=arrays) as registry:
                    timed = _timer(steps, where)
                    names = [folder.name for folder in folders]
                    timed("register", partial(_register, registry, folders, texts))
                    timed("compose", partial(registry.compose, names, home / "moe"))
                    timed("compose from copies", partial(registry.compose, names, home / "again"))
                    timed("verify", registry.verify)
                    nbytes = registry.verify().nbytes
                    if isinstance(registry.arrays, FolderArrays):
                        _read(registry.arrays, steps)
                shutil.rmtree(home)
    finally:
        stop_s3(server)
    seconds = {
        step: {where: statistics.median(times) for where, times in found.items()} for step, found in steps.items()
    }
    return {
        "stored_bytes": nbytes,
        "rounds": rounds,
        "seconds": {
            step: {where: round(value, 3) for where, value in found.items()} for step, found in seconds.items()
        },
        "ratio": {
            step: round(found.get("bucket", found.get("zarr", 0.0)) / found["disk"], 2)
            for step, found in seconds.items()
        },
    }


def _read(arrays: FolderArrays, steps: dict[str, dict[str, list[float]]]) -> None:
    """Time reading all arrays, as the store does and by zarr alone, with a check of digests either way."""
    kinds: dict[str, list[str]] = {}
    for digest in arrays.digests():
        kinds.setdefault("read statistics" if arrays.is_compressed(digest) else "read weights", []).append(digest)
    for step, digests in kinds.items():
        for where, read in (("disk", _read_by_store), ("zarr", _read_by_zarr)):
            _timer(steps, where)(step, partial(read, arrays, digests))


def _read_by_store(arrays: FolderArrays, digests: list[str]) -> None:
    for digest in digests:
        for _ in arrays.open(digest).blocks():
            pass


def _read_by_zarr(arrays: FolderArrays, digests: list[str]) -> None:
    for digest in digests:
        source = arrays.open(digest)
        array = zarr.open_array(ObjectStore(LocalStore(arrays.path(digest))), mode="r", zarr_format=3)
        state = new_hash(source.dtype, source.shape)
        for start in range(0, source.shape[0], array.chunks[0]):
            state.update(np.ascontiguousarray(array[start : start + array.chunks[0]]).data)
        assert state.hexdigest() == digest


def _register(registry: Registry, folders: list[Path], texts: list[Path]) -> None:
    for folder, text in zip(folders, texts, strict=True):
        registry.add_expert(folder.name, folder, data=[text], settings=SETTINGS, allow_unrelated=True)


def _timer(steps: dict[str, dict[str, list[float]]], where: str) -> Callable[[str, Callable[[], object]], None]:
    def timed(step: str, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        steps.setdefault(step, {}).setdefault(where, []).append(time.perf_counter() - start)

    return timed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure; default that of temporary files")
    given = parser.parse_args()
    for key, value in {
        "hidden_size": given.hidden,
        "intermediate_size": 4 * given.hidden,
        "num_hidden_layers": given.layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": given.hidden // 8,
        "vocab_size": 8192,
    }.items():
        setattr(CONFIG, key, value)
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        print(json.dumps(measure_storage(Path(folder), given.rounds)))
