"""The JSON Schema (draft 2020-12) of recipe files."""

from typing import Any

from registry.composition.option import Limits, Option, OptionKind
from registry.composition.recipe.fields import FIELDS, LEAST_COPIES, MOST_COPIES, default, removed
from registry.composition.recipe.shared_options import TRUNK_OPTIONS

Schema = dict[str, Any]

_REFERENCE: Schema = {
    "type": "string",
    "pattern": "^[a-z0-9][a-z0-9._-]*(@[a-z0-9][a-z0-9._-]*)?$",
    "description": "A version: NAME, NAME@NUMBER or NAME@ALIAS.",
}
_EARLIER = "Of earlier recipe files: what it asked for was removed."
_TYPES = {
    OptionKind.CHOICE: "string",
    OptionKind.TEXT: "string",
    OptionKind.NUMBER: "number",
    OptionKind.WHOLE: "integer",
    OptionKind.SWITCH: "boolean",
    OptionKind.BY_MEMBER: "object",
}


def recipe_schema() -> Schema:
    """Return the schema of a recipe file.

    A file that it refuses is refused by `read_recipe` too, which also checks members and values against each other.
    """
    options = {one.name: _field(one) for one in FIELDS.values() if one.group == TRUNK_OPTIONS}
    own = {one.name: _field(one) for one in FIELDS.values() if not one.group and one.stands_for is None}
    earlier = {name: {"enum": [unasked, None], "description": _EARLIER} for name, (unasked, _) in removed().items()}
    weights = _by_member(FIELDS["weights"].limits, nullable=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "recipe",
        "type": ["object", "null"],
        "description": "A recipe file of reg compose --recipe; a key that is null counts as absent.",
        "properties": {
            "experts": {
                "description": "The members: a list of references, or references with their weights.",
                "anyOf": [{"type": "array", "items": _REFERENCE}, weights, {"type": "null"}],
            },
            "base": _REFERENCE | {"type": ["string", "null"], "description": "The base model, where one is needed."},
            "from_base": {
                "type": ["integer", "null"],
                "minimum": LEAST_COPIES,
                "maximum": MOST_COPIES,
                "description": "The number of copies of the base model that are the experts, in place of experts.",
            },
            **earlier,
            **own,
            TRUNK_OPTIONS: _object(options, "Parameters of the trunk method."),
            "computed": _object(
                {"device": _field(FIELDS["device"]), "batch_size": {"type": ["integer", "null"]}},
                "As composition.json has it: what passes ran on.",
            ),
            "fit": {
                "type": ["object", "null"],
                "description": "As composition.json has it: what the coefficients were fitted for and on.",
            },
        },
        "additionalProperties": False,
        "allOf": [rule for one in FIELDS.values() for rule in _rules(one)],
    }


def _object(properties: Schema, description: str) -> Schema:
    return {
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
        "description": description,
    }


def _field(one: Option) -> Schema:
    schema: Schema = {"description": f"{one.help} Default: {one.default_text}."}
    if one.default not in (None, {}) and not one.default_with:
        schema["default"] = one.default
    if one.kind is OptionKind.BY_MEMBER:
        return schema | _by_member(one.limits, nullable=False)
    schema["type"] = [_TYPES[one.kind], "null"]
    if one.kind is OptionKind.CHOICE:
        schema["enum"] = [*one.choices, None]
    elif one.kind is OptionKind.TEXT:
        schema |= {"minLength": 1, "maxLength": 100}
    elif one.kind in (OptionKind.NUMBER, OptionKind.WHOLE):
        schema |= _bounds(one.limits)
    return schema


def _by_member(limits: Limits, *, nullable: bool) -> Schema:
    number = {"type": ["number", "null"] if nullable else "number", **_bounds(limits)}
    return {"type": ["object", "null"], "additionalProperties": number}


def _bounds(limits: Limits) -> Schema:
    bounds: Schema = {}
    if limits.least > float("-inf"):
        bounds["exclusiveMinimum" if limits.above else "minimum"] = limits.least
    if limits.most < float("inf"):
        bounds["maximum"] = limits.most
    return bounds


def _rules(one: Option) -> list[Schema]:
    """Return the rules by which a field has no part beside some outputs and methods."""
    absent: Schema = {one.name: {"const": None}}
    if one.group:
        absent = {one.group: {"properties": absent}}
    rules = []
    if others := [output for output in FIELDS["to"].choices if output not in one.outputs]:
        rules.append({"if": _chosen("to", others, FIELDS["to"].default), "then": {"properties": absent}})
    for name, methods in one.only_with.items():
        others = [method for method in FIELDS[name].choices if method not in methods]
        by_default: dict[str | None, list[str]] = {}
        for output in FIELDS[name].outputs:
            if output in one.outputs:
                by_default.setdefault(default(name, output), []).append(output)
        for usual, outputs in by_default.items():
            chosen = [_chosen(name, others, usual), _chosen("to", outputs, FIELDS["to"].default)]
            chosen += [{"properties": {other: {"type": "null"}}} for other in one.or_with]
            rules.append({"if": {"allOf": chosen}, "then": {"properties": absent}})
    return rules


def _chosen(name: str, values: list[str], usual: str | None) -> Schema:
    """Return the schema of files whose field is in `values`; `usual` is its default, None where that is no value."""
    given: Schema = {"properties": {name: {"enum": values}}, "required": [name]}
    if usual is not None and usual not in values:
        return given
    return {"properties": {name: {"enum": [*values, None]}}}
