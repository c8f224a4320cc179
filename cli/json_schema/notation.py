"""JSON Schemas (draft 2020-12) from lines of text, a field a line, and tables of their fields in Markdown.

A line is `NAME | KIND | MEANING`, with the fields of an object indented below it; a line that is indented and has no
bars continues the one before, and `* NAME` stands for the fields of an earlier object. Kinds are those of docs/json.md,
and the names of earlier objects: `whole number`, `list of text or null`, `by domain: number`, `version; may be absent`.
An object can also be a dataclass, `list of package.module.Row + average - losses` (`class_fields`). A line on a field
that there is already changes it: a kind or a meaning that is empty stays as it is. `USUAL` has the meanings of fields
that have none of their own.

Fields may be added to any object: readers should ignore unknown ones.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from cli.json_schema.classes import class_fields

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
USUAL = {
    "digest": "The digest of its content.",
    "name": "Its name.",
    "nbytes": "The size of all files.",
    "parameters": "Weights, tied ones once.",
    "ref": "The reference of a version: NAME@NUMBER.",
}
"""Name of a field → its usual meaning."""
_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false"}


def read_schemas(text: str) -> dict[str, Schema]:
    """Return name → schema of the lines that are not indented; KeyError for a kind that is not known."""
    found: dict[str, Schema] = {}
    enclosing: list[Schema] = []  # the schema of the latest line at each depth
    for line in re.sub(r"\n +(?! |\* )(?!.* \| )", " ", text).splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, kind, meaning = (*map(str.strip, line.split(" |", 2)), "", "")[:3]
        if not depth:
            enclosing = [_schema_of(kind, found) | ({"description": meaning} if meaning else {})]
            found[name] = enclosing[0]
        elif name.startswith("* "):
            _add_fields(enclosing[depth - 1], _schema_of(name.removeprefix("* "), found))
        else:
            enclosing[depth:] = [_add_field(enclosing[depth - 1], name, kind, meaning, found)]
    return found


def _schema_of(kind: str, known: Mapping[str, Schema]) -> Schema:
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
    return _schema_of_class(kind, known) if "." in kind else deepcopy(_KINDS[kind] if kind in _KINDS else known[kind])


def _schema_of_class(expression: str, known: Mapping[str, Schema]) -> Schema:
    description, fields = class_fields(expression)
    schema: Schema = {"type": "object", "properties": {}, "required": [], "description": description}
    for name, (kind, meaning) in fields.items():
        _add_field(schema, name, kind, meaning, known)
    return schema


def _add_field(schema: Schema, name: str, kind: str, meaning: str, known: Mapping[str, Schema]) -> Schema:
    """Add a field to the object that a schema is of, or change it there; return its schema."""
    before = _within(schema, "")[0].get("properties", {}).get(name, {})
    own = kind.removesuffix(_ABSENT)
    meaning = meaning or before.get("description") or USUAL.get(name, "")
    field = (_schema_of(own, known) if own else before) | {"description": meaning}
    required = [] if kind.endswith(_ABSENT) else [name]
    _add_fields(schema, {"properties": {name: field}, "required": required})
    return field


def _add_fields(schema: Schema, fields: Schema) -> None:
    """Add the fields of an object to the object that a schema is of, or is a list or mapping of."""
    inner, _ = _within(schema, "")
    absent = fields["properties"].keys() - fields["required"]
    inner["properties"] = inner.get("properties", {}) | fields["properties"]
    required = dict.fromkeys([*inner.get("required", []), *fields["required"]])
    inner["required"] = [name for name in required if name not in absent]


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
