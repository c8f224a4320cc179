"""Proves: licenses roll up to the most restrictive one that all may go into, and what a push adds comes off again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.composition.card import license_of, with_additions, without_additions
from registry.composition.licenses import _INTO, _ORDER, roll_up
from registry.errors import CheckpointError

LICENSED = b"---\nlibrary_name: x\nlicense: mit\ntags:\n- a\n---\n\n# title\n\n---\n\ntext\n"
BARE = b"---\nlibrary_name: x\n---\n\n# title\n"


def of(*licenses: str | None) -> dict[str, str | None]:
    return dict(zip("abcdefgh", licenses, strict=False))


@pytest.mark.parametrize(
    ("licenses", "whole"),
    [
        (("mit",), "mit"),
        (("MIT", "mit"), "mit"),
        (("mit", "apache-2.0"), "apache-2.0"),
        (("mpl-2.0", "lgpl-3.0", "mit"), "lgpl-3.0"),
        (("apache-2.0", "gpl-3.0", "mit"), "gpl-3.0"),
        (("GPL-3.0-only", "agpl-3.0"), "agpl-3.0"),
        (("cc-by-4.0", "cc-by-nc-4.0", "apache-2.0"), "cc-by-nc-4.0"),
        (("cc-by-sa-4.0", "gpl-3.0"), "gpl-3.0"),
        (("llama3.1", "apache-2.0", "mit"), "llama3.1"),
        (("gemma", "cc-by-4.0"), "gemma"),
        (("home-made", "home-made"), "home-made"),
    ],
)
def test_what_goes_together(licenses: tuple[str, ...], whole: str) -> None:
    for ordered in (licenses, licenses[::-1]):
        found = roll_up(of(*ordered))
        assert (found.license, found.why) == (whole, None)


@pytest.mark.parametrize(
    ("licenses", "why"),
    [
        (("mit", None), "no license was given for b"),
        (("mit", "home-made"), "b is under 'home-made', of which nothing is known here"),
        (("cc-by-nd-4.0",), "a is under cc-by-nd-4.0, which allows no derivatives"),
        (("apache-2.0", "gpl-2.0"), "a is under apache-2.0 and b under gpl-2.0, and neither may go into the other"),
        (("llama3", "llama3.1"), "a is under llama3 and b under llama3.1, and neither may go into the other"),
        (("cc-by-nc-4.0", "gpl-3.0"), "b is under gpl-3.0 and a under cc-by-nc-4.0, and neither may go into the other"),
        (("cc-by-sa-4.0", "cc-by-nc-4.0"), "a is under cc-by-sa-4.0 and b under cc-by-nc-4.0, and neither may"),
    ],
)
def test_what_does_not(licenses: tuple[str | None, ...], why: str) -> None:
    found = roll_up(of(*licenses))
    assert found.license is None
    assert str(found.why).startswith(why)


def test_the_table_knows_every_license_that_it_names() -> None:
    assert set(_INTO) | set().union(*_INTO.values()) <= set(_ORDER)
    for license_id, into in _INTO.items():  # nothing stricter may go into what asks less, but among the permissive
        strictest = [one for one in into if _ORDER.index(one) < _ORDER.index(license_id)]
        assert all(license_id in _INTO.get(one, ()) or one == "gpl-3.0" for one in strictest), license_id


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
