"""Proves: nothing that is fed to a parser shows a traceback, hangs, takes much memory or leaves a trace.

Some inputs here; `make trust` feeds thousands (`tests.fuzz`), and flips hundreds of bits (`tests.bitflips`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
INPUTS, FLIPS = 22, 6


def figures(*words: str) -> dict[str, Any]:
    """Run a module of the tests and return the line of JSON that it prints last."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.check
def test_inputs_that_nobody_should_write_are_taken_or_refused() -> None:
    found = figures("tests.fuzz", "--inputs", str(INPUTS), "--seed", "1")
    assert found["wrong"] == 0
    assert found["taken"] + found["refused"] == INPUTS
    assert found["refused"] > INPUTS / 2
    assert len(found["targets"]) >= 12
    assert found["most_seconds"] < 5
    assert found["most_MB"] < 500


@pytest.mark.trust
def test_flipped_bits_are_told_and_never_composed_of() -> None:
    found = figures("tests.bitflips", "--flips", str(FLIPS), "--seed", "1", "--subsets", "1")
    assert found["wrong"] == 0
    assert sum(found["told"].values()) + sum(found["unused"].values()) == FLIPS
    assert set(found["told"]) == {"arrays", "database", "folders"}
    assert set(found["unused"]) <= {"database"}
    assert found["compositions"]["damaged"] > 0
