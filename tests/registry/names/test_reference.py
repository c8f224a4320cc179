"""Proves: what may be a name, a version or an alias, and what may not."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidInputError
from registry.names.reference import NAME_LIMIT, Reference, check_alias, check_name

LETTERS = string.ascii_lowercase + string.digits


@given(st.builds(str.__add__, st.sampled_from(LETTERS), st.text(LETTERS + "._-", max_size=98)))
def test_names(name: str) -> None:
    assert check_name(name) == name
    assert Reference.parse(name) == Reference(name)
    assert Reference.parse(f"{name}@12") == Reference(name, number=12)
    assert Reference.parse(f"{name}@stable") == Reference(name, alias="stable")


BAD = [
    *("", "A", "Math", "-a", ".a", "..", "a/b", "../a", "a b", "a\n", "a\x00", "ä", "a;drop table"),
    *("a" * (NAME_LIMIT + 1), "a@", "@1"),
]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is not of the form \[a-z0-9\]\[a-z0-9\._-\]\*"):
        Reference.parse(name)


@pytest.mark.check
@given(st.text())
def test_any_text_is_a_reference_or_is_refused(text: str) -> None:
    try:
        parsed = Reference.parse(text)
    except InvalidInputError:
        return
    assert str(parsed) == text or text.split("@")[1].startswith("0")


def test_alias_is_no_number() -> None:
    assert check_alias("v1") == "v1"
    with pytest.raises(InvalidInputError, match="alias '7' is a number"):
        check_alias("7")
    with pytest.raises(InvalidInputError, match="alias 'X'"):
        check_alias("X")
    with pytest.raises(InvalidInputError, match="is a number"):
        Reference.parse("math@12345678901234567890")
