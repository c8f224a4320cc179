"""JSON Schemas (draft 2020-12) from lines of text, a field a line, and tables of their fields in Markdown.

A line is `NAME | KIND | MEANING`, with the fields of an object indented below it; a line that is indented and has no
bars continues the one before, and `* NAME` stands for the fields of an earlier object. Kinds are those of docs/json.md,
and the names of earlier objects: `whole number`, `list of text or null`, `by domain: number`, `version; may be absent`.

Fields may be added to any object: readers should ignore unknown ones.
"""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

Schema = dict[str, Any]

_ABSENT = "; may be absent"
_KINDS: dict[str, Schema] = {
    "text": {"type": "string"},
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "whole number": {"type": "integer", "minimum": 0},
    "number": {"type": "number"},
    "text or number": {"type": ["string", "number"]},
    "true or false": {"type": "boolean"},
    "object": {"type": "object"},
}
_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false"}


def read_schemas(text: str, known: Mapping[str, Schema] = MappingProxyType({})) -> dict[str, Schema]:
    """Return name → schema of the lines that are not indented; they may name `known` objects and those before them.

    Raises:
        KeyError: a kind is neither one of docs/json.md nor an object.
    """
    found: dict[str, Schema] = {}
    objects = ChainMap(found, {**known})
    enclosing: list[Schema] = []  # the schema of the latest line at each depth
    for line in re.sub(r"\n +(?! |\* )(?!.* \| )", " ", text).splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, rest = line.strip().partition(" | ")
        if name.startswith("* "):
            _add_fields(enclosing[depth - 1], objects[name.removeprefix("* ")])
            continue
        kind, _, meaning = rest.partition(" | ")
        schema = _schema_of(kind.removesuffix(_ABSENT), objects) | {"description": meaning}
        if depth:
            required = [] if kind.endswith(_ABSENT) else [name]
            _add_fields(enclosing[depth - 1], {"properties": {name: schema}, "required": required})
        else:
            found[name] = schema
        enclosing[depth:] = [schema]
    return found


def _schema_of(kind: str, known: Mapping[str, Schema]) -> Schema:
    """Return the schema of a kind, without a description."""
    if kind.endswith(" or null"):
        schema = _schema_of(kind.removesuffix(" or null"), known)
        words = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        return schema | {"type": [schema["type"], "null"]} | words
    if kind.startswith("list of "):
        return {"type": "array", "items": _schema_of(kind.removeprefix("list of "), known)}
    if kind.startswith("by "):
        key, _, value = kind.removeprefix("by ").partition(": ")
        return {"type": "object", "title": key, "additionalProperties": _schema_of(value, known)}
    if kind.startswith("`"):
        return {"type": "string", "enum": re.findall("`(.*?)`", kind)}
    return deepcopy(_KINDS[kind] if kind in _KINDS else known[kind])


def _add_fields(schema: Schema, fields: Schema) -> None:
    """Add the fields of an object to the object that a schema is of, or is a list or mapping of."""
    inner, _ = _within(schema, "")
    inner["properties"] = inner.get("properties", {}) | fields["properties"]
    inner["required"] = inner.get("required", []) + fields["required"]


def rows(schema: Schema, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, kind, meaning) of every field below `schema`: `statistics[].site`, `score.DOMAIN`."""
    for name, field in schema.get("properties", {}).items():
        field_path = f"{path}.{name}" if path else name
        yield field_path, _kind(field) + ("" if name in schema["required"] else _ABSENT), field["description"]
        yield from rows(*_within(field, field_path))


def _within(schema: Schema, path: str) -> tuple[Schema, str]:
    """Return the innermost schema of nested lists and objects by name, and its path."""
    if "items" in schema:
        return _within(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        return _within(schema["additionalProperties"], f"{path}.{schema['title'].upper()}")
    return schema, path


def _kind(schema: Schema) -> str:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(_word(kind, schema) for kind in kinds)


def _word(kind: str, schema: Schema) -> str:
    if "enum" in schema and kind == "string":
        return ", ".join(f"`{word}`" for word in schema["enum"] if word is not None)
    if kind == "array":
        return f"list of {_kind(schema['items'])}"
    if kind == "object" and "title" in schema:
        return f"by {schema['title']}: {_kind(schema['additionalProperties'])}"
    if "pattern" in schema and kind == "string":
        return "digest"
    return _WORDS.get(kind, kind)


def table(schema: Schema) -> str:
    """Return the fields as a Markdown table, after a line with the description of the object."""
    inner, path = _within(schema, "")
    lines = [f"{schema['description'].rstrip('.')}.", ""]
    if "items" in schema:
        lines[0] = f"A list. {lines[0]}"
    fields = list(rows(inner, path.lstrip(".")))
    if fields:
        lines += ["| field | kind | |", "|---|---|---|"]
        lines += [f"| `{field_path}` | {kind} | {meaning} |" for field_path, kind, meaning in fields]
    return "\n".join(lines) + "\n"
