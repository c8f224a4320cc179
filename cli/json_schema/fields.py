"""What JSON Schemas (draft 2020-12) of the commands' output are written with, and their fields as a table.

Every field that a schema names is there unless it says `optional`. Fields may be added to any object: a reader passes
over those that it does not know.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OPTIONAL = "optional"
_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "object", "null": "null"}


def text(says: str, *words: str) -> Schema:
    """Return the schema of a text, one of `words` if there are some."""
    return {"type": "string", **({"enum": list(words)} if words else {}), "description": says}


def digest(says: str) -> Schema:
    """Return the schema of a SHA-256 in hexadecimal digits."""
    return {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": says}


def whole(says: str) -> Schema:
    """Return the schema of a whole number from 0 on."""
    return {"type": "integer", "minimum": 0, "description": says}


def number(says: str) -> Schema:
    """Return the schema of a number."""
    return {"type": "number", "description": says}


def flag(says: str) -> Schema:
    """Return the schema of true or false."""
    return {"type": "boolean", "description": says}


def record(says: str, /, **fields: Schema) -> Schema:
    """Return the schema of an object with these fields."""
    required = [name for name, field in fields.items() if not field.get(_OPTIONAL)]
    properties = {name: {k: v for k, v in field.items() if k != _OPTIONAL} for name, field in fields.items()}
    return {"type": "object", "properties": properties, "required": required, "description": says}


def document(says: str) -> Schema:
    """Return the schema of an object whose fields are documented elsewhere."""
    return {"type": "object", "description": says}


def several(item: Schema, says: str = "") -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, "description": says or item["description"]}


def by(key: str, value: Schema, says: str = "") -> Schema:
    """Return the schema of an object whose keys are no fields but names: `by("domain", …)`."""
    return {"type": "object", "title": key, "additionalProperties": value, "description": says or value["description"]}


def maybe(schema: Schema) -> Schema:
    """Return the schema of what can be null."""
    found = schema | {"type": [schema["type"], "null"]}
    return found | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})


def optional(schema: Schema) -> Schema:
    """Return the schema of a field that may be absent."""
    return schema | {_OPTIONAL: True}


def plus(schema: Schema, /, **fields: Schema) -> Schema:
    """Return the schema of a record with more fields."""
    more = record(schema["description"], **fields)
    return {
        **schema,
        "properties": schema["properties"] | more["properties"],
        "required": schema["required"] + more["required"],
    }


def whole_schema(title: str, schema: Schema) -> Schema:
    """Return a schema that stands for itself."""
    return {"$schema": _DIALECT, "title": title, **schema}


def rows(schema: Schema, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Give (path, kind, meaning) of every field below `schema`: `statistics[].site`, `score.DOMAIN`."""
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        absent = "" if name in schema["required"] else "; may be absent"
        yield where, _kind(field) + absent, field["description"]
        yield from rows(*_within(field, where))


def _within(schema: Schema, path: str) -> tuple[Schema, str]:
    """Return what lists and objects by name hold at last, and the path to it."""
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
    """Return the fields as a Markdown table, after a line that says what they are fields of."""
    inner, path = _within(schema, "")
    lines = [f"{schema['description'].rstrip('.')}.", ""]
    if "items" in schema:
        lines[0] = f"A list. {lines[0]}"
    found = list(rows(inner, path.lstrip(".")))
    if found:
        lines += ["| field | kind | |", "|---|---|---|"]
        lines += [f"| `{where}` | {kind} | {says} |" for where, kind, says in found]
    return "\n".join(lines) + "\n"
