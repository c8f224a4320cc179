"""Proves: the log's page says what an event did in words, of every form that a registry has written it in."""

import pytest

from registry.ui.wording import details

DIGESTS = [character * 64 for character in "abc"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"deleted": dict.fromkeys(DIGESTS, 1_000), "shared": []}, "3 arrays deleted (3.0 kB)"),
        (
            {"digest": "d" * 64, "deleted": {DIGESTS[0]: 20}, "shared": DIGESTS[1:]},
            "1 array deleted (20 B); 2 arrays kept, which other versions share",
        ),
        ({"deleted": DIGESTS, "shared": []}, "3 arrays deleted"),  # of a registry that recorded no sizes
        ({"alias": "good", "deleted": True}, "alias good; deleted yes"),
        ({"reason": "licence", "rows": {}, "actor": "me"}, "reason licence"),
    ],
)
def test_details_of_an_event(found: dict[str, object], said: str) -> None:
    assert details(found) == said
