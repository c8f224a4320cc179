"""Tables in the shape of the papers': FlexOlmo, DUME, MergeME, Soup-of-Experts, SIMoE.

    python -m benchmarks.papers [--shared ../shared] [--only near-free,dume] [--work build/papers]

Experts of SHARED/experts/base and SHARED/corpora/<domain>/train.jsonl.gz, each of as many tokens: free (all weights,
those of SHARED/experts), frozen (the MLPs alone) and coordinated (the MLPs beside the public expert's, with rows of
their own).
Every kind has a registry of its own, in which the base model also stands as the expert `public`. All compositions are
scored on the same test windows. Perplexities are absolute: a normalised score divides by each kind's own experts.

Every part is kept in --work; an interrupted run goes on. Writes PAPERS.md, and beside it PAPERS.json with the figures
and the size of every part: with --only the page has the other parts from there.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.papers import curves
from benchmarks.papers.bench import Bench
from benchmarks.papers.page import machine, page
from benchmarks.papers.parts import PARTS, run_parts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "PAPERS.md"


def main() -> None:
    """Run what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=819_200, help="of each expert; default: %(default)s")
    parser.add_argument("--batch", type=int, default=8, help="windows of a training step; default: %(default)s")
    parser.add_argument("--lr", type=float, default=3e-4, help="the highest learning rate; default: %(default)s")
    parser.add_argument(
        "--mixed-batch", type=int, default=8, help="--batch where text is of several domains; default: %(default)s"
    )
    parser.add_argument(
        "--mixed-lr", type=float, default=5e-5, help="--lr where text is of several domains; default: %(default)s"
    )
    parser.add_argument("--windows", type=int, default=16, help="of each test domain; default: %(default)s")
    parser.add_argument("--steps", type=int, default=50, help="of a training of routers; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="in DUME's Table 2; default: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("build/papers"), help="default: %(default)s")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="parts at a time, a thread each; default: %(default)s"
    )
    parser.add_argument("--only", help=f"parts, or '' to write the page alone: {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=PAGE, help="default: %(default)s")
    given = parser.parse_args()
    roots = given.shared.absolute(), given.work.absolute()
    rates = given.batch, given.lr, given.mixed_batch, given.mixed_lr
    bench = Bench(*roots, given.tokens, *rates, given.windows, given.steps, given.seeds)
    wanted = list(PARTS) if given.only is None else given.only.split(",") if given.only else []
    if strangers := set(wanted) - set(PARTS):
        parser.error(f"{', '.join(sorted(strangers))} is no part: {', '.join(PARTS)}")
    results = bench.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    missing = [name for name in wanted if not (results / f"{name}.json").exists()]
    start = time.perf_counter()
    run_parts(missing, bench, results, given.jobs)
    took = time.perf_counter() - start
    found = {name: json.loads(file.read_text()) for name in PARTS if (file := results / f"{name}.json").exists()}
    kept = given.out.with_suffix(".json")
    earlier: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    record: dict[str, Any] = {"machine": machine(), "parts": earlier.get("parts", {}) | found}
    if len(missing) == len(PARTS):
        record["whole"] = {"wall": took, "jobs": given.jobs}
    elif "whole" in earlier:
        record["whole"] = earlier["whole"]
    kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    given.out.write_text(page(record), encoding="utf-8")
    if drawn := curves.figure(record["parts"]):
        given.out.with_name("papers_curves.svg").write_text(drawn, encoding="utf-8")
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
