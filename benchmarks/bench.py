"""Run every speed benchmark and write `RESULTS.md` and `RESULTS.json` beside this file: `make bench`.

    python -m benchmarks.bench [NAME …] [--scratch DIR]

Each runs in a process of its own, with all cores. With names only those run, and nothing is written.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.alternating import HEADER, Comparison
from benchmarks.random_experts import HOMES

BENCHMARKS: tuple[str, ...] = (
    "gram",
    "registration_pass",
    "compose_copy",
    "compose_memory",
    "refit",
    "recompose",
    "router_solve",
    "growth",
    "startup",
    "mergekit",
)
"""The modules of this folder that have a `measure`, in the order of the table."""

FOLDER = Path(__file__).parent


def machine() -> dict[str, str]:
    """Return what the ratios were measured on."""
    import torch

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    units = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if name in info]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
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


def measured(name: str, scratch: Path | None) -> list[Comparison] | str:
    """Run one benchmark in a process of its own; return its comparisons, or why there are none."""
    words = [sys.executable, "-m", f"benchmarks.{name}", *(["--scratch", str(scratch)] if scratch else [])]
    done = subprocess.run(words, cwd=FOLDER.parent, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2] or f"ended with {done.returncode}"
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [Comparison.from_dict(row) for row in rows]


def page(found: dict[str, list[Comparison] | str], seconds: dict[str, float]) -> str:
    """Return RESULTS.md.

    Args:
        found: benchmark → its comparisons, or why there are none.
        seconds: benchmark → how long it ran.
    """
    rows = [row for comparisons in found.values() if not isinstance(comparisons, str) for row in comparisons]
    aimed = [row for row in rows if row.target is not None]
    reached = sum(comparison.reached is True for comparison in aimed)
    took = ", ".join(f"`{name}` {amount:.0f} s" for name, amount in seconds.items())
    lines = [
        "# Speed",
        "",
        "What `make bench` measured: both sides of a claim run in turn on one machine; the ratio is ours / other",
        "of one round. Models are random weights of real shapes. Times depend on the machine; ratios much less.",
        "",
        *(f"- {key}: {value}" for key, value in machine().items()),
        "",
        f"{reached} of {len(aimed)} targets are reached. All of it took {sum(seconds.values()) / 60:.0f} min: {took}.",
        "",
        HEADER,
    ]
    lines += [row.row() for row in rows]
    failed = [f"`{name}` gave nothing: {why}" for name, why in found.items() if isinstance(why, str)]
    return "\n".join([*lines, *(["", *failed] if failed else [])]) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--scratch", type=Path, help="where their folders are made; default: the system's place")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(BENCHMARKS)):
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(name, None)  # all cores, on both sides
    found: dict[str, list[Comparison] | str] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="reg-bench-", dir=arguments.scratch) as homes:
        os.environ[HOMES] = homes
        for name in arguments.names or BENCHMARKS:
            start = time.monotonic()
            found[name] = measured(name, arguments.scratch)
            seconds[name] = time.monotonic() - start
            print(f"{name}: {seconds[name]:.0f} s", file=sys.stderr, flush=True)
    text = page(found, seconds)
    print(text)
    if not arguments.names:
        (FOLDER / "RESULTS.md").write_text(text, encoding="utf-8")
        rows = [c.to_dict() for comparisons in found.values() if not isinstance(comparisons, str) for c in comparisons]
        document = {"machine": machine(), "seconds": seconds, "comparisons": rows}
        (FOLDER / "RESULTS.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if any(isinstance(result, str) for result in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
