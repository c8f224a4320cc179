"""What compositions of real experts are worth: every method, reference beside it, near and far experts.

    python -m benchmarks.quality [--shared ../shared] [--far FOLDER] [--only table,tokens] [--jobs 2] [--json FILE]

`SHARED/experts/<name>` are checkpoints, `SHARED/experts/base` their base model, their text is
`SHARED/corpora/<name>/{train,test}.jsonl.gz`. `SHARED/experts/reference.json`, if it is there, has the scores of
another implementation. The experts are registered with their train text.

Every part is a process of its own, as many at a time as --jobs, with one thread each. What a part found is kept in
--work: an interrupted run goes on, and with --only the page has what was found before as well. Delete that folder to
measure again. Sections:

    table      all methods
    reference  more rows of the reference, which no method of the table is; by --only alone, it takes minutes
    sampled    experts registered without any text: each wrote its own
    six        with an expert close to another
    far        with experts far from the others and from the base model (needs --far)
    tokens     one expert with ten times the tokens
    continual  three schedules, each in a registry of its own
    context    context routing against ridge, on five sets (four of them need --far)
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.context_parts import CONTEXT_PARTS, SETS
from benchmarks.quality_page import page, with_scores
from benchmarks.quality_parts import PARTS as TABLES
from benchmarks.quality_parts import REGISTERING, REGISTERS_ITSELF, Figures, Place
from registry import TestSettings

PARTS = TABLES | CONTEXT_PARTS
SECTIONS = tuple(dict.fromkeys(name.partition("-")[0] for name in PARTS))
USUAL = tuple(section for section in SECTIONS if section != "reference")
PAGE = Path(__file__).with_name("QUALITY.md")
METHODS_PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main() -> None:
    """Run what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).parents[2] / "shared", help="default: %(default)s"
    )
    parser.add_argument("--far", type=Path, help="experts and `corpora` of their text")
    parser.add_argument("--home", type=Path, help="a registry of the five experts; default: made in --work")
    parser.add_argument("--work", type=Path, default=Path("build/quality"), help="default: %(default)s")
    parser.add_argument("--only", help=f"sections: {','.join(SECTIONS)}")
    parser.add_argument("--windows", type=int, default=48, help="test windows of each domain; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=PAGE, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write every figure here too")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work: Path = arguments.work.absolute()
    home = arguments.home.absolute() if arguments.home else work / "home"
    place = Place(
        arguments.shared.absolute(),
        home,
        work / "sampled",
        arguments.far.absolute() if arguments.far else None,
        TestSettings(windows=arguments.windows, dtype="float32"),
    )
    if not (place.shared / "experts" / "base").is_dir():
        parser.error(
            f"{place.shared / 'experts' / 'base'} is not a folder; experts and their text are not part of this "
            "repository: put yours where the beginning of this file says, or name their folder: --shared DIR"
        )
    (work / "results").mkdir(parents=True, exist_ok=True)
    if arguments.part:
        _run(arguments.part, place, work)
        return
    only = USUAL if arguments.only is None else tuple(arguments.only.split(","))
    if strangers := set(only) - set(SECTIONS):
        parser.error(f"{', '.join(sorted(strangers))} is no section: {', '.join(SECTIONS)}")
    names = [name for name in PARTS if name.partition("-")[0] in only and _has_experts(place, name)]
    apart = [name for name in names if name in REGISTERS_ITSELF]  # beside the registering that all others wait for
    order = [*REGISTERING, *apart, *(name for name in names if name not in apart)]
    _together([name for name in order if not _result(work, name).exists()], arguments.jobs)
    found = {
        name: json.loads(_result(work, name).read_text())
        for name in (*REGISTERING, *PARTS)
        if _result(work, name).exists()
    }
    others = place.shared / "experts" / "reference.json"
    reference = json.loads(others.read_text()) if others.is_file() else {}
    arguments.out.write_text(page(found, reference, arguments.windows))
    print(f"wrote {arguments.out}")
    if arguments.out == PAGE:
        METHODS_PAGE.write_text(with_scores(METHODS_PAGE.read_text(), found))
        print(f"wrote its scores into {METHODS_PAGE}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def _has_experts(place: Place, name: str) -> bool:
    """Tell whether the experts of a part are there."""
    if name == "far":
        return bool(place.distant)
    experts = SETS[name.removeprefix("context-")] if name in CONTEXT_PARTS else ()
    return all((place.checkpoint(expert) / "config.json").is_file() for expert in experts)


def _together(names: Sequence[str], jobs: int) -> None:
    """Run parts in processes, so many at a time, those that need the registry of all once it is there."""
    waiting = {name: threading.Event() for name in names if name in REGISTERING}

    def run(name: str) -> int:
        if name not in REGISTERING and name not in REGISTERS_ITSELF:
            for registered in waiting.values():
                registered.wait()
        print(f"{name} …", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.quality", *sys.argv[1:], "--part", name]
        code = subprocess.run(command, env=os.environ | _ONE_THREAD, check=False).returncode
        if name in waiting:
            waiting[name].set()
        print(f"{name}: {'done' if code == 0 else 'failed'} in {time.monotonic() - started:.0f} s", flush=True)
        return code

    with ThreadPoolExecutor(jobs) as pool:
        failed = [name for name, code in zip(names, pool.map(run, names), strict=True) if code]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the others are kept, and the same command goes on")


def _run(name: str, place: Place, work: Path) -> None:
    """Run one part, and keep what it found with what it cost."""
    started = time.monotonic()
    found: Figures = {**REGISTERING, **PARTS}[name](place)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cost = {"cpu": used.ru_utime + used.ru_stime, "wall": time.monotonic() - started}
    path = _result(work, name)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({**found, "cost": cost}))
    partial.replace(path)


def _result(work: Path, name: str) -> Path:
    return work / "results" / f"{name}.json"


if __name__ == "__main__":
    main()
