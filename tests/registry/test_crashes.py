"""Proves: a process killed anywhere, or a disk that is full, loses nothing, leaves nothing, and repeating leads on.

A sample is tried here; `make trust` tries many more of the same (`tests.crash`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import faults
from tests.running import figures_of

ROOT = Path(__file__).parents[2]


@pytest.mark.check
@pytest.mark.skipif(faults.why_not() is not None, reason=str(faults.why_not()))
def test_killed_or_without_space_at_some_points() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST"))}
    words = [sys.executable, "-m", "tests.crash", "sample"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert [one["failed"] for one in told.values()] == [[], [], []]
    assert told["kill"]["points"] > 1000
    assert told["kill"]["kills"] >= told["kill"]["tried"] - len(told["kill"]["commands"])
    assert told["full"]["refused"] > 0
    assert told["random"]["kills"] > 0


@pytest.mark.trust
@pytest.mark.skipif(faults.why_not() is not None, reason=str(faults.why_not()))
def test_killed_with_the_catalog_in_postgresql() -> None:
    told = figures_of("tests.crash", "random", "--kills", 2, "--database", "postgresql")["random"]
    assert told["failed"] == []
    assert told["kills"] == 2


@pytest.mark.trust
@pytest.mark.skipif(faults.why_not() is not None, reason=str(faults.why_not()))
def test_killed_with_arrays_in_a_bucket_and_the_catalog_in_postgresql() -> None:
    words = ["random", "--kills", 3, "--database", "postgresql", "--arrays", "s3"]
    told = figures_of("tests.crash", *words)["random"]
    assert told["failed"] == []
    assert told["kills"] == 3
