"""Tables in the shape of the papers': FlexOlmo, DUME, MergeME, Soup-of-Experts, SIMoE.

    python -m benchmarks.papers [--shared ../shared] [--far FOLDER] [--only near-free,dume] [--work build/papers]

Experts are trained from SHARED/experts/base on SHARED/corpora/<domain>/train.jsonl.gz, each on as many tokens: free
(all weights), frozen (the MLPs alone) and coordinated (the MLPs beside the public expert's, with rows of their own).
Every kind has a registry of its own, in which the base model also stands as the expert `public`. All compositions are
scored on the same test windows. Perplexities are absolute: a normalised score divides by each kind's own experts.

Every part is kept in --work; an interrupted run goes on. Writes PAPERS.md, and beside it PAPERS.json with the figures
and the size of every part: with --only, and without FAR, the page has the other parts from there. FAR holds far
experts' `corpora`, as far_text.py makes them.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.papers import curves, dume, flexolmo, hetero, mergeme, simoe, soups, statistics_curves
from benchmarks.papers.bench import Bench, Figures
from benchmarks.papers.page import machine, page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "PAPERS.md"
PARTS: dict[str, Callable[[Bench], Figures]] = {
    **flexolmo.PARTS,
    **dume.PARTS,
    **curves.PARTS,
    **statistics_curves.PARTS,
    **mergeme.PARTS,
    **hetero.PARTS,
    **soups.PARTS,
    **simoe.PARTS,
}


def main() -> None:
    """Run what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="default: %(default)s")
    parser.add_argument("--far", type=Path, help="`corpora` of far experts; without, their rows are left out")
    parser.add_argument("--tokens", type=int, default=40_960, help="of each expert; default: %(default)s")
    parser.add_argument("--batch", type=int, default=2, help="windows of a training step; default: %(default)s")
    parser.add_argument("--lr", type=float, default=2e-4, help="the highest learning rate; default: %(default)s")
    parser.add_argument(
        "--mixed-batch", type=int, default=8, help="--batch where text is of several domains; default: %(default)s"
    )
    parser.add_argument(
        "--mixed-lr", type=float, default=5e-5, help="--lr where text is of several domains; default: %(default)s"
    )
    parser.add_argument("--windows", type=int, default=16, help="of each test domain; default: %(default)s")
    parser.add_argument(
        "--steps", type=int, nargs=2, default=[20, 60], help="of a short and a long training of routers"
    )
    parser.add_argument("--work", type=Path, default=Path("build/papers"), help="default: %(default)s")
    parser.add_argument("--only", help=f"parts: {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=PAGE, help="default: %(default)s")
    given = parser.parse_args()
    roots = given.shared.absolute(), given.far, given.work.absolute()
    rates = given.batch, given.lr, given.mixed_batch, given.mixed_lr
    bench = Bench(*roots, given.tokens, *rates, given.windows, given.steps)
    wanted = list(PARTS) if given.only is None else given.only.split(",")
    if strangers := set(wanted) - set(PARTS):
        parser.error(f"{', '.join(sorted(strangers))} is no part: {', '.join(PARTS)}")
    results = bench.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        file = results / f"{name}.json"
        if file.exists() or (name.startswith("far-") and bench.far is None):
            continue
        print(f"{name} …", flush=True)
        file.write_text(json.dumps(measured(name, bench), indent=1))
    found = {name: json.loads(file.read_text()) for name in PARTS if (file := results / f"{name}.json").exists()}
    record: dict[str, Any] = {"machine": machine(), "parts": _recorded(given.out.with_suffix(".json")) | found}
    given.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    given.out.write_text(page(record), encoding="utf-8")
    if drawn := curves.figure(record["parts"]):
        given.out.with_name("papers_curves.svg").write_text(drawn, encoding="utf-8")
    print(f"wrote {given.out}")


def measured(name: str, bench: Bench) -> Figures:
    """Run a part, and return its figures with its size and the seconds that it took."""
    wall, processor = time.perf_counter(), time.process_time()
    figures = PARTS[name](bench)
    size = {
        "tokens": bench.tokens,
        "batch": bench.batch,
        "lr": bench.lr,
        "mixed_batch": bench.mixed_batch,
        "mixed_lr": bench.mixed_lr,
        "windows": bench.windows,
        "steps": list(bench.steps),
    }
    seconds = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
    return {**figures, "size": size, "seconds": seconds}


def _recorded(file: Path) -> dict[str, Any]:
    """Return the figures that a file has of each part."""
    if not file.exists():
        return {}
    recorded = json.loads(file.read_text(encoding="utf-8"))
    return {name: figures for name, figures in recorded["parts"].items() if name in PARTS}


if __name__ == "__main__":
    main()
