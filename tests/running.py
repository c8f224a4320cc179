"""The long runs: what their command lines share, and running them in a process of their own.

They fork, which a process with threads must not.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""A folder where what is flushed costs nothing."""


def figures_of(module: str, *words: object) -> dict[str, Any]:
    """Run a module of the tests, and return the figures that it prints on its last line."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST", "REG_"))}
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def command_line(doc: str | None, **numbers: int | None) -> argparse.ArgumentParser:
    """Return the options of a run: numbers with their defaults, and the folder below which it works."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--scratch", type=Path, default=MEMORY)
    return parser


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add where registries have their catalogs and their arrays."""
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--arrays", choices=("folder", "s3"), default="folder")


def tell(figures: dict[str, Any], wrong: Iterable[str] = ()) -> None:
    """Print what is wrong, and the figures on one line; end with 1 if anything is."""
    told = [print(line, file=sys.stderr) for line in wrong]
    print(json.dumps(figures))
    if told:
        sys.exit(1)
