"""Schemas of untrusted JSON documents: known keys, and a kind for each value."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from registry.errors import CheckpointError
from store.digest import canonical_json

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST = 1e308
_LARGEST = 2**53
_LABEL = 10_000
_HINT = "copy the file again from where it was written"


@dataclass(frozen=True)
class Kind:
    """A kind of value: its description, and its test."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and -_MOST <= value <= _MOST


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def is_digest(value: object) -> bool:
    """Tell whether `value` is a SHA-256 in lower-case hexadecimal digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


TEXT = Kind("a text", lambda value: isinstance(value, str))
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a finite number with a decimal point", _is_number)
LABEL = Kind(
    f"a printable text of at most {_LABEL} characters",
    lambda value: isinstance(value, str) and value.isprintable() and len(value) <= _LABEL,
)
WHOLE = Kind("a whole number", _is_whole)
COUNT = Kind("a count", lambda value: _is_whole(value) and value >= 0)
DIGEST = Kind("a digest of 64 hexadecimal digits", is_digest)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
NUMBERS = Kind(
    "an object of finite numbers with decimal points",
    lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
)


def maybe(kind: Kind) -> Kind:
    """Return the kind of values that are of `kind` or null."""
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.holds(value))


def list_of(kind: Kind) -> Kind:
    """Return the kind of lists in which every item is of `kind`."""
    return Kind(
        f"a list of which each is {kind.words}", lambda value: isinstance(value, list) and all(map(kind.holds, value))
    )


def fields(
    document: object, kinds: Mapping[str, Kind], where: str, *, optional: Collection[str] = (), hint: str = _HINT
) -> dict[str, Any]:
    """Return `document` if it is an object of these keys, each of its kind.

    Args:
        document: the content of a JSON file.
        kinds: key → kind of its value.
        where: the document's name in messages.
        optional: keys that may be absent.
        hint: the hint of errors.

    Raises:
        CheckpointError: `document` is not an object, a key is unknown or missing, or a value is of another kind.
    """
    if not isinstance(document, dict):
        raise CheckpointError(f"{where} is not a JSON object", hint)
    if unknown := [key for key in document if key not in kinds]:
        raise CheckpointError(f"{where} has a key {unknown[0]!r}, which this program does not know", hint)
    if missing := [key for key in kinds if key not in document and key not in optional]:
        raise CheckpointError(f"{where} has no key {missing[0]!r}", hint)
    for key, value in document.items():
        if not kinds[key].holds(value):
            raise CheckpointError(f"{where}: {key} is {_short(value)}, it must be {kinds[key].words}", hint)
    return dict(document)


def check_written(document: Mapping[str, Any], written: Mapping[str, Any], where: str) -> None:
    """Check that `document`, parsed and written again, stays the same.

    Raises:
        CheckpointError: it differs; the message has the first key in which it does.
    """
    for key in (*written, *document):
        if key not in document:
            raise CheckpointError(f"{where} has no key {key!r}", _HINT)
        if key not in written:
            raise CheckpointError(f"{where} has a key {key!r}, which does not belong there", _HINT)
        if canonical_json(document[key]) != canonical_json(written[key]):
            raise CheckpointError(
                f"{where}: {key} is {_short(document[key])}, this program would write {_short(written[key])}", _HINT
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
