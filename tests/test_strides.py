"""Proves: `make test` runs every n-th case of a test with a stride, at least one of each, and no long test.

Of tests on both databases, half of them run on each.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import _kind, _left_out


@dataclass(frozen=True, eq=False)
class Item:
    """What collecting knows of a case."""

    nodeid: str
    marks: tuple[Any, ...] = ()

    def get_closest_marker(self, name: str) -> Any:
        """Return the mark of this name, or None."""
        return next((mark for mark in self.marks if mark.name == name), None)


@pytest.mark.parametrize(("cases", "stride", "run"), [(12, 4, {3}), (13, 4, {3, 4}), (3, 6, {1}), (1, 2, {1})])
def test_every_nth_case_runs(cases: int, stride: int, run: set[int]) -> None:
    mark = pytest.mark.stride(stride).mark
    for file in ("a.py", "b.py", "c.py"):
        items: list[Any] = [Item(f"{file}::test_x[{number}]", (mark,)) for number in range(cases)]
        kept = [number for number, item in enumerate(items) if item not in _left_out(items)]
        assert len(kept) in run
        assert all(after - before == stride for before, after in itertools.pairwise(kept))


def test_files_begin_at_different_cases() -> None:
    mark = pytest.mark.stride(6).mark
    items: list[Any] = [Item(f"{file}.py::test_x[{n}]", (mark,)) for file in "abcdefgh" for n in range(6)]
    out = _left_out(items)
    assert len({item.nodeid.partition("[")[2] for item in items if item not in out}) > 2


def test_long_tests_are_left_out_and_others_stay() -> None:
    long: Any = Item("a.py::test_long", (pytest.mark.long.mark,))
    other: Any = Item("a.py::test_other")
    assert _left_out([long, other]) == {long}


def test_tests_on_both_databases_run_on_either() -> None:
    kinds = [_kind(f"tests/store/test_catalog.py::test_{number}") for number in range(100)]
    assert 30 < kinds.count(("sqlite",)) < 70
    assert {*kinds} == {("sqlite",), ("postgresql",)}
