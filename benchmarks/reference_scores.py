"""The normalised scores of compositions of real experts, for a folder of experts and one of corpora.

    python benchmarks/reference_scores.py --experts EXPERTS --corpora CORPORA [--domains code,math,…] [--sampled]

`EXPERTS/<name>` are checkpoints, `EXPERTS/base` their base model; `CORPORA/<name>/{train,test}.jsonl.gz` their text.
Registers each with its train text, or with `--sampled` with nothing but its checkpoint, composes with both trunk
methods, and evaluates on the test text.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from registry import Recipe, Registry


def main() -> None:
    """Register, compose, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--domains", default="biomed,code,german,literature,math")
    parser.add_argument("--sampled", action="store_true", help="no data: every expert writes its own calibration text")
    parser.add_argument("--keep", type=Path, help="write the composed folders here")
    arguments = parser.parse_args()
    domains = arguments.domains.split(",")
    with tempfile.TemporaryDirectory() as scratch, Registry(Path(scratch) / "home") as registry:
        out = arguments.keep or Path(scratch)
        registry.add_base("base", arguments.experts / "base")
        for name in domains:
            start = time.monotonic()
            data = [] if arguments.sampled else [arguments.corpora / name / "train.jsonl.gz"]
            registered = registry.add_expert(name, arguments.experts / name, data=data)
            print(f"{registered.version.ref} in {time.monotonic() - start:.1f} s", flush=True)
        folders = []
        for trunk in ("mean", "base"):
            registry.compose(domains, out / trunk, Recipe(trunk=trunk, router="ridge"), force=True)
            folders.append(out / trunk)
        test = {name: [arguments.corpora / name / "test.jsonl.gz"] for name in domains}
        rows = registry.evaluate(folders, test, baselines=True)
        print(f"{'':20s}" + "".join(f"{name[:10]:>12s}" for name in (*domains, "average")))
        for row in rows:
            cells = [*(row.score[name] for name in domains), row.average or 0.0]
            print(f"{row.name:20s}" + "".join(f"{cell:12.2f}" for cell in cells))
        print(json.dumps({row.name: row.score | {"average": row.average} for row in rows}))


if __name__ == "__main__":
    main()
