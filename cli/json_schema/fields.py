"""Building blocks of JSON Schemas (draft 2020-12) for the commands' output, and tables of their fields.

Every field in a schema is present unless marked `optional`. Fields may be added to any object: readers should ignore
unknown ones.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OPTIONAL = "optional"
_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "object", "null": "null"}


def text(description: str, *words: str) -> Schema:
    """Return the schema of a text; with `words`, one of them."""
    return {"type": "string", **({"enum": list(words)} if words else {}), "description": description}


def digest(description: str) -> Schema:
    """Return the schema of a SHA-256 in hexadecimal digits."""
    return {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": description}


def whole(description: str) -> Schema:
    """Return the schema of a whole number, 0 or more."""
    return {"type": "integer", "minimum": 0, "description": description}


def number(description: str) -> Schema:
    """Return the schema of a number."""
    return {"type": "number", "description": description}


def flag(description: str) -> Schema:
    """Return the schema of true or false."""
    return {"type": "boolean", "description": description}


def record(description: str, /, **fields: Schema) -> Schema:
    """Return the schema of an object with these fields."""
    required = [name for name, field in fields.items() if not field.get(_OPTIONAL)]
    properties = {name: {k: v for k, v in field.items() if k != _OPTIONAL} for name, field in fields.items()}
    return {"type": "object", "properties": properties, "required": required, "description": description}


def document(description: str) -> Schema:
    """Return the schema of an object whose fields are documented elsewhere."""
    return {"type": "object", "description": description}


def several(item: Schema, description: str = "") -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, "description": description or item["description"]}


def by(key: str, value: Schema, description: str = "") -> Schema:
    """Return the schema of an object whose keys are names instead of fields: `by("domain", …)`."""
    return {
        "type": "object",
        "title": key,
        "additionalProperties": value,
        "description": description or value["description"],
    }


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that can be null."""
    nullable = schema | {"type": [schema["type"], "null"]}
    return nullable | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})


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
    """Return a complete schema with dialect and title."""
    return {"$schema": _DIALECT, "title": title, **schema}


def rows(schema: Schema, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, kind, meaning) of every field below `schema`: `statistics[].site`, `score.DOMAIN`."""
    for name, field in schema.get("properties", {}).items():
        field_path = f"{path}.{name}" if path else name
        absent = "" if name in schema["required"] else "; may be absent"
        yield field_path, _kind(field) + absent, field["description"]
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
