"""Proves: whatever is done to a registry, and wherever it is killed, it holds what a model in plain Python holds.

And its compositions are, byte by byte, those of a registry that never held anything but their members. Three short
histories here; `make trust` drives it through hundreds of long ones.
"""

from pathlib import Path

import pytest

from tests.running import figures_of

EXAMPLES, STEPS = 2, 4


@pytest.mark.check
def test_whole_registry_against_a_model(tmp_path: Path) -> None:
    words = ["--examples", EXAMPLES, "--steps", STEPS, "--names", 2, "--scratch", tmp_path, "--untrained"]
    told = figures_of("tests.machine", *words)
    assert told["examples"] >= EXAMPLES
    assert told["steps"] >= EXAMPLES * STEPS
    assert told["kills"] > 0
    assert told["compared"] > EXAMPLES
    print(told)
