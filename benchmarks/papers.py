"""Tables in the shape of the papers': FlexOlmo's Table 1, and DUME's Table 2 with BTX and DUME+ trained as published.

    python -m benchmarks.papers [--shared ../shared] [--far FOLDER] [--only near-free,dume] [--work build/papers]

Experts are trained from SHARED/experts/base on SHARED/corpora/<domain>/train.jsonl.gz, each on as many tokens: free
(all weights), frozen (the MLPs alone) and coordinated (the MLPs beside the public expert's, with rows of their own).
Every kind has a registry of its own, in which the base model also stands as the expert `public`. All compositions are
scored on the same test windows. Perplexities are absolute: a normalised score divides by each kind's own experts.

Every part is kept in --work; an interrupted run goes on. Writes PAPERS.md, and beside it PAPERS.json with the figures
of every part: with --only, and without FAR, the page has those of the other parts from there, if they were measured
with as many tokens, windows and steps. FAR holds far experts' `corpora`, as far_text.py makes them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.papers_page import machine, page
from benchmarks.papers_parts import PARTS, Bench

PAGE = Path(__file__).with_name("PAPERS.md")


def main() -> None:
    """Run what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).parents[2] / "shared", help="default: %(default)s"
    )
    parser.add_argument("--far", type=Path, help="`corpora` of far experts; without, their rows are left out")
    parser.add_argument("--tokens", type=int, default=409_600, help="of each expert; default: %(default)s")
    parser.add_argument("--windows", type=int, default=48, help="of each test domain; default: %(default)s")
    parser.add_argument(
        "--steps", type=int, nargs=2, default=[50, 200], help="of a short and a long training of routers"
    )
    parser.add_argument("--work", type=Path, default=Path("build/papers"), help="default: %(default)s")
    parser.add_argument("--only", help=f"parts: {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=PAGE, help="default: %(default)s")
    given = parser.parse_args()
    bench = Bench(given.shared.absolute(), given.far, given.work.absolute(), given.tokens, given.windows, given.steps)
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
        file.write_text(json.dumps(PARTS[name](bench), indent=1))
    size = {"tokens": given.tokens, "windows": given.windows, "steps": given.steps}
    found = {name: json.loads(file.read_text()) for name in PARTS if (file := results / f"{name}.json").exists()}
    record = size | {"machine": machine(), "parts": _recorded(given.out.with_suffix(".json"), size) | found}
    given.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    given.out.write_text(page(record), encoding="utf-8")
    print(f"wrote {given.out}")


def _recorded(file: Path, size: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that a file has of each part; none if they were measured at another size."""
    if not file.exists():
        return {}
    recorded = json.loads(file.read_text(encoding="utf-8"))
    if any(recorded[name] != value for name, value in size.items()):
        return {}
    return {name: figures for name, figures in recorded["parts"].items() if name in PARTS}


if __name__ == "__main__":
    main()
