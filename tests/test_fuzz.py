"""Proves: nothing that is fed to a parser shows a traceback, hangs, takes much memory or leaves a trace.

Some inputs here; `make trust` feeds thousands (`tests.fuzz`), and flips hundreds of bits (`tests.bitflips`).
"""

import pytest

from tests.running import figures_of

INPUTS, FLIPS = 22, 9


@pytest.mark.check
def test_inputs_that_nobody_should_write_are_taken_or_refused() -> None:
    found = figures_of("tests.fuzz", "--inputs", INPUTS, "--seed", 1)
    assert found["wrong"] == 0
    assert found["taken"] + found["refused"] == INPUTS
    assert found["refused"] > INPUTS / 2
    assert len(found["targets"]) >= 12
    assert found["most_seconds"] < 5
    assert found["most_MB"] < 500


@pytest.mark.trust
def test_flipped_bits_are_told_and_never_composed_of() -> None:
    found = figures_of("tests.bitflips", "--flips", FLIPS, "--seed", 1, "--subsets", 1)
    assert found["wrong"] == 0
    assert sum(found["told"].values()) + sum(found["unused"].values()) == FLIPS
    assert set(found["told"]) == {"arrays", "database", "folders"}
    assert set(found["unused"]) <= {"database"}
    assert found["compositions"]["damaged"] > 0
