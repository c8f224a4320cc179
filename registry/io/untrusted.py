"""Untrusted files and JSON: bounded in size, depth and number of values before they are parsed; then keys and kinds."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.display import quoted
from registry.io.limits import JSON_BYTES, JSON_DEPTH, JSON_DIGITS, JSON_KEYS, JSON_VALUES
from store.digest import canonical_json, is_digest

GENUINE = "name a genuine checkpoint"  # the hint of errors about files that no common program writes

_LABEL = 10_000
_AGAIN = "copy the file again from where it was written"
_SNAPSHOT = re.compile(r"models--[^/]+/snapshots/[0-9a-f]{40}")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(data: bytes, *, values: int = JSON_VALUES) -> Any:
    """Return the document in `data`: UTF-8, no key twice in one object, every number finite, text that can be written.

    The size of the data has been checked (ValueError: the data is not such a document, is nested deeper than
    `JSON_DEPTH`, or has more than `values` values or too many keys).
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
    """Return the JSON object in `data` (CheckpointError: it is none, or `parse_json` refuses it; it names `where`)."""
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


def own_file(folder: Path, name: str) -> Path | None:
    """Return the path of a regular file in a checkpoint's folder, or None if it has no such file.

    A symbolic link may lead to another file of the folder, and from a snapshot of the Hub's cache to its blobs, where
    the cache keeps every file. One that leads elsewhere could copy any file of this machine into a model: it raises
    CheckpointError.
    """
    path = folder / name
    if not path.is_file():
        return None
    if path.is_symlink():
        root, target = folder.resolve(), path.resolve()
        if not target.is_relative_to(root) and not (
            _SNAPSHOT.fullmatch("/".join(root.parts[-3:])) and target.is_relative_to(root.parent.parent / "blobs")
        ):
            raise CheckpointError(
                f"{path} is a symbolic link out of the folder, to {target}",
                "put the file itself there, if you trust it: cp --remove-destination",
            )
    return path


def is_folder(text: str) -> bool:
    """Tell whether a text, of any length and characters, is the path of a folder."""
    return os.path.isdir(text)  # noqa: PTH112  # Path.is_dir fails for what is too long to be a path


def is_plain(name: str) -> bool:
    """Tell whether `name` is a plain file name, which cannot lead out of its folder."""
    return Path(name).name == name and name.isprintable() and len(name.encode()) <= 255 and name not in ("", ".", "..")


def read_small(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes (CheckpointError: it is larger, or a device)."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not a regular file", GENUINE)
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path} has more than {limit:,} bytes", GENUINE)
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file (CheckpointError: it is too large, or no JSON object)."""
    return json_object(read_small(path, JSON_BYTES), str(path))


@dataclass(frozen=True)
class Kind:
    """A kind of value: its description, and its test."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and abs(value) <= 1e308


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


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
    document: object, kinds: Mapping[str, Kind], where: str, *, optional: Collection[str] = (), hint: str = _AGAIN
) -> dict[str, Any]:
    """Return `document`, called `where`, if it has these keys, each of its kind (CheckpointError says what differs)."""
    if not isinstance(document, dict):
        raise CheckpointError(f"{where} is not a JSON object", hint)
    if unknown := [key for key in document if key not in kinds]:
        raise CheckpointError(f"{where} has a key {unknown[0]!r}, which this program does not know", hint)
    if missing := [key for key in kinds if key not in document and key not in optional]:
        raise CheckpointError(f"{where} has no key {missing[0]!r}", hint)
    for key, value in document.items():
        if not kinds[key].holds(value):
            raise CheckpointError(f"{where}: {key} is {quoted(value)}, it must be {kinds[key].words}", hint)
    return dict(document)


def some_fields(
    document: Mapping[str, Any], kinds: Mapping[str, Kind], where: str, *, hint: str, optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of these keys of an object, each of its kind; other keys are not looked at (as `fields`)."""
    return fields({key: document[key] for key in kinds if key in document}, kinds, where, optional=optional, hint=hint)


def check_format(document: Mapping[str, Any], known: int, where: str, hint: str) -> None:
    """Raise CheckpointError if a document is of another format than the one that this program reads."""
    if document["format"] != known:
        raise CheckpointError(f"{where} has format {document['format']}, this program reads {known}", hint)


def check_written(document: Mapping[str, Any], written: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError if `document`, parsed and written again, differs; it names the first key that does."""
    for key in (*written, *document):
        if key not in document:
            raise CheckpointError(f"{where} has no key {key!r}", _AGAIN)
        if key not in written:
            raise CheckpointError(f"{where} has a key {key!r}, which does not belong there", _AGAIN)
        if canonical_json(document[key]) != canonical_json(written[key]):
            raise CheckpointError(
                f"{where}: {key} is {quoted(document[key])}, this program would write {quoted(written[key])}", _AGAIN
            )
