"""Proves: processes that work on one registry at once meet nothing but what others did to what they asked for.

Three processes, a few operations each; `make trust` has eight, two hundred each.
"""

from pathlib import Path

import pytest

from tests.running import figures_of

PROCESSES, OPERATIONS = 3, 4


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize(("database", "arrays"), [("postgresql", "s3"), ("sqlite", "folder"), ("postgresql", "folder")])
def test_processes_at_once(tmp_path: Path, database: str, arrays: str) -> None:
    words = ["--processes", PROCESSES, "--operations", OPERATIONS, "--creations", 1, "--scratch", tmp_path]
    words += ["--database", database, "--arrays", arrays]
    told = figures_of("tests.concurrency", *words)
    assert told["faults"] == 0
    assert told["operations"] == PROCESSES * OPERATIONS
    assert told["versions"] > 0
    print(told)
