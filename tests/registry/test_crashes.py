"""Proves: a process killed anywhere, or a disk that is full, loses nothing, leaves nothing, and repeating leads on.

A sample is tried here; `make trust` tries many more of the same (`tests.crash`).
"""

import pytest

from tests.crash import faults
from tests.running import figures_of

pytestmark = pytest.mark.skipif(faults.why_not() is not None, reason=str(faults.why_not()))


@pytest.mark.check
def test_killed_or_without_space_at_some_points() -> None:
    told = figures_of("tests.crash", "sample")
    print(told)
    assert [one["failed"] for one in told.values()] == [[], [], []]
    assert told["kill"]["points"] > 1000
    assert told["kill"]["kills"] >= told["kill"]["tried"] - len(told["kill"]["commands"])
    assert told["full"]["refused"] > 0
    assert told["random"]["kills"] > 0


@pytest.mark.trust
@pytest.mark.parametrize(("arrays", "kills"), [([], 2), (["--arrays", "s3"], 3)], ids=["folder", "s3"])
def test_killed_with_the_catalog_in_postgresql(arrays: list[str], kills: int) -> None:
    told = figures_of("tests.crash", "random", "--kills", kills, "--database", "postgresql", *arrays)["random"]
    assert (told["failed"], told["kills"]) == ([], kills)
