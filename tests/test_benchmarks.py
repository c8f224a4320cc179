"""Proves: `make bench` runs every script that measures speed, and its table tells what could not be measured."""

import json
from pathlib import Path

import pytest

from benchmarks.alternating import HEADER, Comparison
from benchmarks.bench import BENCHMARKS
from benchmarks.context_cost import RECIPES, REFERENCES, table

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_every_script_that_measures_is_run() -> None:
    measuring = {path.stem for path in FOLDER.glob("*.py") if "\ndef measure(scratch: Path)" in path.read_text()}
    assert set(BENCHMARKS) == measuring


@pytest.mark.parametrize(
    ("comparison", "reached"),
    [
        (Comparison("a claim", (1.0, 2.0, 3.0), (2.0, 2.0, 2.0), 1.0, ours_peak=10**6, other_peak=2 * 10**6), True),
        (Comparison("a claim", (3.0,), (2.0,), 1.0), False),
        (Comparison("a claim", (3.0,), (2.0,)), None),
        (Comparison.missing("a claim", "there is nothing", 0.5), None),
    ],
)
def test_rows_have_the_columns_of_their_header(comparison: Comparison, reached: bool | None) -> None:
    assert comparison.reached is reached
    assert comparison.row().count("|") == HEADER.splitlines()[0].count("|")
    assert Comparison.from_dict(json.loads(json.dumps(comparison.to_dict()))) == comparison


def test_no_rounds_and_no_reason_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="0 and 0 runs are no rounds"):
        Comparison("a claim", (), ())


def test_cost_of_context_routing_is_compared_with_both_references() -> None:
    seconds = {name: [1.0 + number, 2.0 + number] for number, name in enumerate(RECIPES)}
    header, _, row, *ratios, size = table("a set", {"prefill, s": seconds, "layers": dict.fromkeys(RECIPES, 6)})
    assert {line.count("|") for line in (header, row, *ratios, size)} == {len(RECIPES) + 2}
    assert [line.split(" | ")[0] for line in ratios] == [f"| – against {name}" for name in REFERENCES]
    assert "| 1.5 | 2.5 | 3.5 |" in row
    assert "|  | 1.75 (1.50–2.00) |" in ratios[0]
