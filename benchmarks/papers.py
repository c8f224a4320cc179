"""Tables in the shape of the papers': FlexOlmo's Table 1, and DUME's Table 2 with BTX and DUME+ trained as published.

    python -m benchmarks.papers [--shared ../shared] [--far FOLDER] [--only near-free,dume] [--work build/papers]

Experts are trained from SHARED/experts/base on SHARED/corpora/<domain>/train.jsonl.gz, each on as many tokens: free
(all weights), frozen (the MLPs alone) and coordinated (the MLPs beside the public expert's, with rows of their own).
Every kind has a registry of its own, in which the base model also stands as the expert `public`. All compositions are
scored on the same test windows. Perplexities are absolute: a normalised score divides by each kind's own experts.

Every part is kept in --work; an interrupted run goes on, and with --only the page has what was found before as well.
Writes PAPERS.md beside this file. FAR holds far experts' `corpora`, as far_text.py makes them.
"""

import argparse
import json
from pathlib import Path

from benchmarks.papers_page import page
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
    parser.add_argument("--work", type=Path, default=Path("build/papers"), help="default: %(default)s")
    parser.add_argument("--only", help=f"parts: {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=PAGE, help="default: %(default)s")
    given = parser.parse_args()
    bench = Bench(given.shared.absolute(), given.far, given.work.absolute(), given.tokens, given.windows)
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
    found = {name: json.loads(file.read_text()) for name in PARTS if (file := results / f"{name}.json").exists()}
    given.out.write_text(page(found, given.tokens, given.windows), encoding="utf-8")
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
