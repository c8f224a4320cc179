"""Running the long tests in a process of their own: they fork, which a process with threads must not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def figures_of(module: str, *words: object) -> dict[str, Any]:
    """Run a module of the tests, and return the figures that it prints on its last line."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST", "REG_"))}
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
