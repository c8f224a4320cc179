"""Peak memory and time of composing to a bucket, at two sizes, beside composing to a local folder.

    python -m benchmarks.to_storage [--layers 2,6] [--scratch DIR]

Random experts of H = 1,024 in bfloat16, two in each composition, trunk mean. The bucket is a server of the S3 protocol
(moto) on this machine, in a process of its own, which is not counted. Prints for each size the bytes written, the
largest resident set of the composing process above that of `import torch`, its wall time, and the largest number of
bytes that its scratch folder held. The peak is to be the same for both sizes.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from benchmarks.alternating import MEGABYTE
from benchmarks.compose_memory import measured
from benchmarks.random_experts import fill
from tests.s3_server import start_s3, stop_s3

SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 8_000,
}
COMPOSING = """
from registry import Recipe, Registry
from registry.io import model_folder
from store.bucket import Bucket
model_folder.ONE_FILE_BYTES, model_folder.SHARD_BYTES = 0, 64 * 10**6
held, upload = 0, Bucket.upload
def watched(self, key, path):
    global held
    held = max(held, sum(file.stat().st_size for file in path.parent.iterdir()))
    upload(self, key, path)
Bucket.upload = watched
with Registry({home!r}) as registry:
    registry.compose({names!r}, {out!r}, Recipe(trunk="mean", router="ridge"), force=True)
Path({result!r}).write_text(json.dumps(held))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="2,6")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    server = start_s3()
    os.environ.update(server.environment)
    alone = measured("import torch")["peak"]
    try:
        for layers in map(int, options.layers.split(",")):
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                print(json.dumps(at(Path(folder), layers, server.new_bucket(), alone)), flush=True)
    finally:
        stop_s3(server)


def at(scratch: Path, layers: int, bucket: str, alone: float) -> dict[str, float]:
    """Return the figures of one size.

    Args:
        scratch: an empty folder.
        layers: of the experts.
        bucket: an empty bucket.
        alone: bytes of a process that only imports torch.
    """
    home, names = fill(scratch, 2, num_hidden_layers=layers, **SHAPE)
    result = scratch / "held"
    figures: dict[str, float] = {"layers": layers}
    for kind, out in (("folder", str(scratch / "moe")), ("bucket", f"s3://{bucket}/moe")):
        done = measured(COMPOSING.format(home=str(home), names=names, out=out, result=str(result)))
        figures[f"{kind} peak MB"] = round((done["peak"] - alone) / MEGABYTE)
        figures[f"{kind} seconds"] = round(done["seconds"], 1)
    figures["MB written"] = round(sum(path.stat().st_size for path in (scratch / "moe").iterdir()) / MEGABYTE)
    figures["scratch MB"] = round(json.loads(result.read_text()) / MEGABYTE)
    return figures


if __name__ == "__main__":
    main()
