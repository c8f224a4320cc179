"""Proves: every case of every test is in one tier, cheap ones in the first, and marks and fixtures move it on."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiers import CHECKED, TIERS, tiers_of


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
