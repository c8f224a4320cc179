"""Untrusted JSON, parsed after checks of its size, depth and number of values."""

import json
import re
from typing import Any

from registry.errors import CheckpointError
from registry.io.limits import JSON_DEPTH, JSON_DIGITS, JSON_KEYS, JSON_VALUES

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(data: bytes, *, values: int = JSON_VALUES) -> Any:
    """Return the document in `data`: UTF-8, no key twice in one object, every number finite, text that can be written.

    Args:
        data: the file; its size has been checked.
        values: the largest number of values.

    Raises:
        ValueError: the data is not such a document, is nested deeper than `JSON_DEPTH`, or has too many values or keys.
    """
    text = data.decode("utf-8")
    _check_structure(data, values)
    try:
        document = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if _SURROGATE.search(data):
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # half a surrogate pair cannot be encoded
    return document


def json_object(data: bytes, where: str, *, values: int = JSON_VALUES) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Raises:
        CheckpointError: the data is not a JSON object, or `parse_json` refuses it; the message names `where`.
    """
    try:
        document = parse_json(data, values=values)
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON: {error}", "copy the file again") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{where} is not a JSON object", "copy the file again")
    return document


def _check_structure(data: bytes, values: int) -> None:
    if data.count(b"[") + data.count(b"{") <= JSON_DEPTH and data.count(b",") < JSON_KEYS:
        return  # nearly all rows of text
    bare = _STRING.sub(b"", data)
    if (count := bare.count(b",") + bare.count(b"[") + bare.count(b"{")) > values:
        raise ValueError(f"it holds {count:,} values, the limit is {values:,}")
    if (count := bare.count(b":")) > JSON_KEYS:
        raise ValueError(f"it holds {count:,} keys, the limit is {JSON_KEYS:,}")
    brackets = bare.translate(None, _NO_BRACKETS)
    for _ in range(JSON_DEPTH):  # each round removes the innermost pairs
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise ValueError(f"it is nested deeper than {JSON_DEPTH} levels, or not closed")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has the key {next(key for key in keys if keys.count(key) > 1)[:80]!r} twice")
    return document


def _whole(text: str) -> int:
    if len(text) > JSON_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits, the limit is {JSON_DIGITS}")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_finite, parse_constant=_constant)
