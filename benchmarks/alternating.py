"""Two sides of one claim, run in turn (A B A B …), so that whatever else the machine does meets both of them.

A benchmark is a module with `measure(scratch) -> list[Comparison]` that ends with

    if __name__ == "__main__":
        run(measure)

and stands in the table of `bench.py`. A side is a callable, or the words of a command, which runs in a process of its
own. Ratios are ours / other of one round: below 1 where ours is faster.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Side = Callable[[], object] | Sequence[str]
"""What is timed: a callable, or the words of a command."""

MEGABYTE = 10**6

MOST_ROUNDS = "REG_BENCH_ROUNDS"
"""Environment variable: rounds of a comparison, at most."""

SHORT = "REG_BENCH_SHORT"
"""Environment variable: leave out the largest shapes, and what depends on no processor, such as perplexities."""

HEADER = (
    "| claim | ours | other | ratio: min | median | max | target | reached | peak: ours | other |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)

# Linux hands the peak of a process on to the program that it starts, so a small process stands in between. What the
# command prints goes to a file, so that no pipe can fill up.
_LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - start
with open(sys.argv[1], "w") as file:
    used = usage.ru_utime + usage.ru_stime
    json.dump([seconds, usage.ru_maxrss * 1024, used, os.waitstatus_to_exitcode(status)], file)
"""


@dataclass(frozen=True)
class Setup:
    """The surroundings of both sides' runs.

    Attributes:
        before_ours: called before each run of `ours`, outside its time: to delete what the last one wrote, say.
        before_other: the same for `other`.
        environment: variables for commands, beside those of this process.
    """

    before_ours: Callable[[], object] | None = None
    before_other: Callable[[], object] | None = None
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Run:
    """One run of a side.

    Attributes:
        seconds: wall time.
        peak: peak memory in bytes, where that is known.
        processor: processor time in seconds, of a command.
    """

    seconds: float
    peak: int | None = None
    processor: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What both sides of a claim took in each round.

    Attributes:
        claim: what is compared, in a few words.
        ours: of each round, in `unit`.
        other: the same of what it is compared with.
        target: what the ratio may be at most; None where none is set.
        unit: s or MB.
        ours_peak: the largest peak memory of a run, in bytes; of a callable, that of this whole process.
        other_peak: the same.
        note: what a reader should know beside; where nothing could be measured, why.
    """

    claim: str
    ours: tuple[float, ...]
    other: tuple[float, ...]
    target: float | None = None
    unit: str = "s"
    ours_peak: int | None = None
    other_peak: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.ours) != len(self.other) or not (self.ours or self.note):
            raise ValueError(f"{self.claim}: {len(self.ours)} and {len(self.other)} runs are no rounds")

    @classmethod
    def missing(cls, claim: str, why: str, target: float | None = None) -> "Comparison":
        """Return what stands in the table for a claim that could not be measured."""
        return cls(claim, (), (), target, note=why)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Return ours / other, round by round."""
        return tuple(a / b for a, b in zip(self.ours, self.other, strict=True))

    @property
    def ratio(self) -> float:
        """Return the median ratio; NaN where nothing could be measured."""
        return statistics.median(self.ratios) if self.ratios else math.nan

    @property
    def reached(self) -> bool | None:
        """Tell whether the median ratio is within the target; None where there is none, or no ratio."""
        return None if self.target is None or not self.ratios else self.ratio <= self.target

    def memory(self, claim: str, target: float | None = None) -> "Comparison":
        """Return the comparison of the two peaks.

        Raises:
            ValueError: a peak is not known.
        """
        if self.ours_peak is None or self.other_peak is None:
            raise ValueError(f"{self.claim}: no peak memory was taken")
        ours, other = self.ours_peak / MEGABYTE, self.other_peak / MEGABYTE
        return Comparison(claim, (ours,), (other,), target, "MB", self.ours_peak, self.other_peak)

    def row(self) -> str:
        """Return the line of a Markdown table below `HEADER`."""
        if not self.ratios:
            target = "" if self.target is None else f"≤ {self.target:.3g}"
            return f"| {self.claim}: not measured, {self.note} | | | | | | {target} | | | |"
        cells = [
            f"{self.claim}{f' ({self.note})' if self.note else ''}",
            f"{_digits(statistics.median(self.ours))} {self.unit}",
            f"{_digits(statistics.median(self.other))} {self.unit}",
            *(f"{of(self.ratios):.3f}" for of in (min, statistics.median, max)),
            "" if self.target is None else f"≤ {self.target:.3g}",
            {None: "", True: "yes", False: "**no**"}[self.reached],
            *("" if p is None else f"{p / MEGABYTE:,.0f} MB" for p in (self.ours_peak, self.other_peak)),
        ]
        return f"| {' | '.join(cells)} |"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "claim": self.claim,
            "unit": self.unit,
            "ratio": {"min": min(self.ratios), "median": self.ratio, "max": max(self.ratios)} if self.ratios else None,
            "target": self.target,
            "reached": self.reached,
            "rounds": len(self.ours),
            "ours": list(self.ours),
            "other": list(self.other),
            "ours_peak": self.ours_peak,
            "other_peak": self.other_peak,
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Comparison":
        """Return what `to_dict` was made of."""
        return cls(
            found["claim"],
            tuple(found["ours"]),
            tuple(found["other"]),
            found["target"],
            found["unit"],
            found["ours_peak"],
            found["other_peak"],
            found["note"],
        )


def alternate(
    claim: str,
    ours: Side,
    other: Side,
    rounds: int,
    *,
    target: float | None = None,
    warm_up: int = 1,
    setup: Setup | None = None,
    note: str = "",
) -> Comparison:
    """Run two sides in turn and return what each round took.

    Args:
        claim: what is compared.
        ours: the side that the claim is about.
        other: what it is compared with.
        rounds: runs of each side that count; fewer where `REG_BENCH_ROUNDS` says so.
        target: what the ratio may be at most.
        warm_up: runs of each side before, which do not count.
        setup: calls before each run, and variables for commands.
        note: goes into the table.

    Raises:
        RuntimeError: a command failed.
    """
    setup, rounds = setup or Setup(), min(rounds, int(os.environ.get(MOST_ROUNDS, rounds)))
    results: tuple[list[Run], list[Run]] = ([], [])
    for number in range(warm_up + rounds):
        for side, before, runs in ((ours, setup.before_ours, results[0]), (other, setup.before_other, results[1])):
            if before is not None:
                before()
            result = once(side, setup.environment)
            if number >= warm_up:
                runs.append(result)
    seconds = [tuple(run.seconds for run in runs) for runs in results]
    peaks = [max((run.peak for run in runs if run.peak is not None), default=None) for runs in results]
    return Comparison(claim, seconds[0], seconds[1], target, "s", peaks[0], peaks[1], note)


def once(side: Side, environment: Mapping[str, str] | None = None) -> Run:
    """Run one side and return what it took.

    Raises:
        RuntimeError: the command failed.
    """
    if not callable(side):
        return _command(side, environment or {})
    known = _forget_peak()
    start = time.perf_counter()
    side()
    return Run(time.perf_counter() - start, _peak() if known else None)


def run(measure: Callable[[Path], list[Comparison]]) -> None:
    """Be the command line of one benchmark: print its table, then one line of JSON a comparison."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--scratch", type=Path, help="where its folders are made; default: the system's place")
    with tempfile.TemporaryDirectory(prefix="reg-bench-", dir=parser.parse_args().scratch) as scratch:
        found = measure(Path(scratch))
    print(HEADER)
    for comparison in found:
        print(comparison.row())
    for comparison in found:
        print(json.dumps(comparison.to_dict()), flush=True)


def _command(words: Sequence[str], environment: Mapping[str, str]) -> Run:
    with tempfile.TemporaryDirectory(prefix="reg-bench-") as folder:
        report, printed = Path(folder, "report"), Path(folder, "printed")
        with printed.open("wb") as out:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(report), *words],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=True,
            )
        seconds, peak, processor, code = json.loads(report.read_text())
        if code:
            last = printed.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(words)[:200]} ended with {code}:\n{last}")
    return Run(seconds, peak, processor)


def _forget_peak() -> bool:
    """Let the kernel count this process's peak memory from here on, where it can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


def _digits(value: float) -> str:
    """Return a value with three significant digits or more, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.6f}"
