"""Proves: what a push adds to a card can be told from it, and taken away again, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.composition.cards.pushed import license_of, with_additions, without_additions
from registry.errors import CheckpointError

LICENSED = b"---\nlibrary_name: x\nlicense: mit\ntags:\n- a\n---\n\n# title\n\n---\n\ntext\n"
BARE = b"---\nlibrary_name: x\n---\n\n# title\n"


@pytest.mark.parametrize("card", [LICENSED, BARE])
@pytest.mark.parametrize("metadata", ["", "language:\n- de\n", "license: other\nlanguage:\n- de\n"])
@pytest.mark.parametrize("page", ["", "## Scores\n\n| a |\n"])
def test_additions_come_and_go(card: bytes, metadata: str, page: str) -> None:
    pushed = with_additions(card, metadata, page)
    assert (pushed == card) is (not metadata and not page)
    assert without_additions(pushed) == card
    assert with_additions(pushed, metadata, page) == pushed  # not twice
    assert license_of(pushed) == ("other" if "license" in metadata else license_of(card))
    assert pushed.count(b"\nlicense: ") <= 1
    assert page.encode() in pushed


@given(st.binary())
def test_any_file_is_read(data: bytes) -> None:
    for card in (data, b"---\n" + data, LICENSED + data):
        without_additions(card)
        license_of(card)


def test_what_is_no_card_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no metadata"):
        with_additions(b"# title\n", "", "text")
