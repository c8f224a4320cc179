"""Proves: every case of every test is in one tier, cheap ones in the first, and marks and fixtures move it on."""

import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiers import CHECKED, TIERS, drawn_place, tiers_of


@dataclass(eq=False)
class Item:
    """What collecting knows of a case."""

    nodeid: str
    marks: tuple[Any, ...] = ()
    fixturenames: tuple[str, ...] = ()
    catalog_kind: str | None = None
    callspec: Any = field(init=False)

    def __post_init__(self) -> None:
        self.callspec = SimpleNamespace(params={} if self.catalog_kind is None else {"catalog_kind": self.catalog_kind})

    def iter_markers(self, name: str) -> Any:
        """Return the marks of this name."""
        return [mark for mark in self.marks if mark.name == name]


def tiers(*items: Any) -> list[str]:
    return list(tiers_of(items).values())


def test_a_test_is_of_the_tier_it_is_marked_with() -> None:
    marks: list[tuple[Any, ...]] = [(), (pytest.mark.check.mark,), (pytest.mark.trust.mark,)]
    assert tiers(*(Item(f"a.py::test_{n}", own) for n, own in enumerate(marks))) == list(TIERS)


def test_later_cases_are_of_later_tiers() -> None:
    marks = (pytest.mark.check(after=1).mark, pytest.mark.trust(after=3).mark)
    cases = [Item(f"a.py::test_x[{number}]", marks) for number in range(5)]
    assert tiers(*cases) == ["test", "check", "check", "trust", "trust"]
    both = [Item(f"a.py::test_y[{kind}-{n}]", marks, (), kind) for n in range(2) for kind in ("sqlite", "postgresql")]
    assert tiers(*both) == ["test", "check", "check", "check"]


@pytest.mark.parametrize("fixture", sorted(CHECKED))
def test_what_starts_a_program_is_checked(fixture: str) -> None:
    assert tiers(Item("a.py::test_x", (), ("tmp_path", fixture))) == ["check"]
    assert tiers(Item("a.py::test_x", (pytest.mark.trust.mark,), (fixture,))) == ["trust"]


def test_files_are_in_another_order_for_each_seed_and_whole() -> None:
    cases = [f"tests/test_{name}.py::test_{number}" for name in "abcdef" for number in range(3)]
    orders = {tuple(sorted(cases, key=partial(drawn_place, seed))) for seed in range(8)}
    assert len(orders) > 1
    for order in orders:
        files = [case.partition("::")[0] for case in order]
        assert len([1 for one, then in pairwise(files) if one != then]) == 5
        assert [case for case in order if "test_a.py" in case] == cases[:3]


@pytest.mark.check
def test_nothing_begins_when_the_time_is_over() -> None:
    tests = f"{__file__}::test_a_test_is_of_the_tier_it_is_marked_with"
    asked = [sys.executable, "-m", "pytest", "-n0", "-q", "-rs", "--until", str(int(time.time())), tests]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert "no time is left" in done.stdout
    assert "1 skipped" in done.stdout
