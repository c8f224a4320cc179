"""Run every speed benchmark and write the page, JSON and figure of the results beside this file: `make bench`.

    python -m benchmarks.bench [NAME …] [--machine as-it-is|avx2] [--scratch DIR]

Each runs in a process of its own, with all cores. Those that depend on the processor run a second time, in fewer
rounds, with torch and oneDNN held to AVX2, which stands for a processor without AVX-512. With names or --machine only
those run, and nothing is written.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternating import HEADER, MOST_ROUNDS, SHORT, Comparison
from benchmarks.compose_scaling import figure
from benchmarks.random_experts import HOMES

BENCHMARKS: tuple[str, ...] = (
    "gram",
    "registration_pass",
    "add_expert",
    "compose_copy",
    "regmean_experts",
    "compose_memory",
    "recompose",
    "router_solve",
    "growth",
    "startup",
    "catalog",
    "ray_workers",
    "mergekit",
    "compose_scaling",
    "gpu",
)
"""The modules of this folder that have a `measure`, in the order of the table."""

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Machine:
    """A machine, or what this one is held to.

    Attributes:
        title: of its table.
        environment: variables of its benchmarks.
        names: the benchmarks that run on it.
    """

    title: str
    environment: Mapping[str, str]
    names: tuple[str, ...]


MACHINES = {
    "as-it-is": Machine("The machine as it is", {MOST_ROUNDS: "3"}, BENCHMARKS),
    "avx2": Machine(
        "Held to AVX2",
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", MOST_ROUNDS: "2", SHORT: "1"},
        (
            "gram",
            "registration_pass",
            "add_expert",
            "compose_copy",
            "regmean_experts",
            "router_solve",
            "mergekit",
        ),
    ),
}
"""Word of --machine → machine, in the order of the tables."""


@dataclass(frozen=True)
class Measured:
    """The result of one benchmark: its comparisons or the reason for their absence, and how long it ran."""

    result: list[Comparison] | str
    seconds: float

    @property
    def comparisons(self) -> list[Comparison]:
        """Return its comparisons."""
        return [] if isinstance(self.result, str) else self.result


Results = Mapping[str, Mapping[str, Measured]]
"""Word of a machine → benchmark → what it gave."""


def machine() -> dict[str, str]:
    """Return what the ratios were measured on."""
    import torch

    info = _processor()
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    units = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if name in info]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none, so the rows of a GPU are absent"
    return {
        "processor": f"{fields.get('model name', platform.processor() or platform.machine())} ({', '.join(units)})",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "GPU": gpu,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
    }


def measured(name: str, environment: Mapping[str, str], scratch: Path | None) -> Measured:
    """Run one benchmark in a process of its own."""
    words = [sys.executable, "-m", f"benchmarks.{name}", *(["--scratch", str(scratch)] if scratch else [])]
    start = time.monotonic()
    done = subprocess.run(words, cwd=FOLDER.parent, env=os.environ | environment, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode:
        return Measured(done.stderr.strip().rpartition("\n")[2] or f"ended with {done.returncode}", seconds)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Measured([Comparison.from_dict(row) for row in rows], seconds)


def page(results: Results) -> str:
    """Return RESULTS.md."""
    every = [found for of_machine in results.values() for found in of_machine.values()]
    aimed = [row for found in every for row in found.comparisons if row.target is not None]
    reached = sum(comparison.reached is True for comparison in aimed)
    minutes = sum(found.seconds for found in every) / 60
    lines = [
        "# Speed",
        "",
        "What `make bench` measured: both sides of a claim run in turn on one machine; the ratio is ours / other",
        "of one round. Models are random weights of real shapes. Perplexities are those of the five trained experts of",
        "[QUALITY.md](QUALITY.md). Times depend on the machine; ratios less.",
        "mergekit-moe is version 0.1.5 with `gate_mode: hidden`, the base model, and eight texts of each expert's",
        "domain as prompts; where perplexities are compared, with one expert per token, as ours has.",
        'Of composing: "the first time", no member was composed before; "other weights", the products of the members',
        'are in the cache, but nothing of the subset with these `--weights`; "composed before", the subset was',
        "([the cache](../docs/concepts.md#trunks)). What takes minutes has one round: its least ratio is its largest.",
        "",
        *(f"- {key}: {value}" for key, value in machine().items()),
        "",
        f"{reached} of {len(aimed)} targets are reached. All of it took {minutes:.0f} min.",
    ]
    for word, of_machine in results.items():
        lines += ["", *_section(MACHINES[word], of_machine)]
    scaling = results.get("as-it-is", {}).get("compose_scaling")
    if scaling is not None and scaling.comparisons:
        lines += ["", "![compose time by bytes, experts and width](compose_time.svg)"]
    return "\n".join(lines) + "\n"


def _section(of: Machine, found: Mapping[str, Measured]) -> list[str]:
    """Return the lines of one machine's table."""
    held = ", ".join(f"`{name}={value}`" for name, value in of.environment.items() if not name.startswith("REG_"))
    took = ", ".join(f"`{name}` {one.seconds:.0f} s" for name, one in found.items())
    failed = [f"`{name}` gave nothing: {one.result}" for name, one in found.items() if isinstance(one.result, str)]
    return [
        f"## {of.title}",
        "",
        *([f"With {held}, which stand for a processor without AVX-512.", ""] if held else []),
        took + ".",
        "",
        HEADER,
        *(row.row() for one in found.values() for row in one.comparisons),
        *(["", *failed] if failed else []),
    ]


def _processor() -> str:
    return Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--machine", choices=MACHINES, help="default: both, where this one has AVX-512")
    parser.add_argument("--scratch", type=Path, help="where their folders are made; default: the system's place")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(BENCHMARKS)):
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(name, None)  # all cores, on both sides
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands are timed as they run once installed
    words = [arguments.machine] if arguments.machine else [*MACHINES][: 2 if "avx512f" in _processor() else 1]
    results: dict[str, dict[str, Measured]] = {word: {} for word in words}
    with tempfile.TemporaryDirectory(prefix="reg-bench-", dir=arguments.scratch) as homes:
        os.environ[HOMES] = homes
        for word, found in results.items():
            for name in MACHINES[word].names:
                if arguments.names and name not in arguments.names:
                    continue
                found[name] = measured(name, MACHINES[word].environment, arguments.scratch)
                print(f"{word}, {name}: {found[name].seconds:.0f} s", file=sys.stderr, flush=True)
    text = page(results)
    print(text)
    if not (arguments.names or arguments.machine):
        (FOLDER / "RESULTS.md").write_text(text, encoding="utf-8")
        tables = {word: {name: _document(one) for name, one in found.items()} for word, found in results.items()}
        document = {"machine": machine(), "tables": tables}
        (FOLDER / "RESULTS.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if rows := results["as-it-is"]["compose_scaling"].comparisons:
            (FOLDER / "compose_time.svg").write_text(figure(rows), encoding="utf-8")
    if any(isinstance(one.result, str) for found in results.values() for one in found.values()):
        sys.exit(1)


def _document(one: Measured) -> dict[str, object]:
    why = {"failed": one.result} if isinstance(one.result, str) else {}
    return {"seconds": one.seconds, "comparisons": [row.to_dict() for row in one.comparisons], **why}


if __name__ == "__main__":
    main()
