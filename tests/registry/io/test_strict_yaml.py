"""Proves: YAML is read as plain values with their lines, in little time, and what could do harm is refused by line."""

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.errors import InvalidInputError
from registry.io.limits import YAML_BYTES, YAML_DEPTH, YAML_VALUES
from registry.io.strict_yaml import parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e999", float("inf")),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        (".nan", ".nan"),
        ("2026-01-01", "2026-01-01"),
        ("True", True),
        ("false", False),
        ("no", "no"),
        ("~", None),
        ("null", None),
        ("", None),
        ('"1"', "1"),
        ("'null'", "null"),
        ("|\n  1", "1"),
        ("{a: [1, {b: c}]}", {"a": [1, {"b": "c"}]}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_words_and_numbers_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(text.encode(), "f").plain
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1", "f:1: it has an anchor (&x)"),
        ("a: 1\nb: *x", "f:2: it has an alias (*x)"),
        ("a: !!python/object/apply:os.system [ls]", "f:1: it has a tag (tag:yaml.org,2002:python/object/apply:os.sys"),
        ("a:\n  !own b", "f:2: it has a tag (!own)"),
        ("%YAML 1.1\n---\na: 1", "f:1: it has a directive"),
        ("%TAG ! tag:a,2000:\n---\na: 1", "f:1: it has a directive"),
        ("a: 1\n---\nb: 1", "f:2: it has a second document"),
        ("a: 1\nb: 2\na: 3", "f:3: the key 'a' appears twice, first in line 1"),
        ("? [a]\n: 1", "f:1: a key is not text"),
        ("a: 1\nb: [", "f:2: it is not valid YAML: "),
        ("a: 1\n\tb: 2", "f:2: it is not valid YAML: "),
        ("a: 1\nb: \x07", "f:2: it has a character that YAML does not allow"),
        ("[" * (YAML_DEPTH + 1), f"f:1: it is nested deeper than {YAML_DEPTH} levels"),
        (f"[{'1,' * YAML_VALUES}1]", f"f holds more than {YAML_VALUES:,} values"),
        ("a: 1\nb: \udcff", "f:2: it is not UTF-8"),
        (" " * (YAML_BYTES + 1), f"f has {YAML_BYTES + 1:,} bytes, the limit is {YAML_BYTES:,}"),
    ],
)
def test_what_could_do_harm_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_yaml(text.encode(errors="surrogateescape"), "f")
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_values_are_at_the_lines_of_their_keys() -> None:
    found = parse_yaml(b"# a comment\na:\n  b: 1\n\n  c:\n    - 1\n    - 2\n", "f").value
    assert isinstance(found, dict)
    inner = found["a"].value
    assert isinstance(inner, dict)
    assert (found["a"].line, inner["b"].line, inner["c"].line) == (2, 3, 5)
    items = inner["c"].value
    assert isinstance(items, list)
    assert [item.line for item in items] == [6, 7]


@pytest.mark.check(after=15)
@pytest.mark.parametrize("piece", ["[", "{", "- ", "? ", "a: ", "&a ", "*a ", "!a ", '"', "'", "|", ">", "%", "#",
                                   "{a: ", "[[],", "a\n", "- a\n", "9", ",", ":", "\n", "\\", "--- "])  # fmt: skip
def test_no_repetition_takes_long(piece: str) -> None:
    data = (piece * YAML_BYTES)[:YAML_BYTES].encode()
    begun = time.process_time()
    with suppress(InvalidInputError):
        parse_yaml(data, "f")
    assert time.process_time() - begun < 10


@given(st.binary(max_size=200) | st.text(alphabet="ab:-?[]{}&*!|>'\"%@,# \n\t01.e", max_size=60).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InvalidInputError):
        parse_yaml(data, "f")
