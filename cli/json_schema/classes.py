"""Fields of dataclasses in the notation of schemas: from annotations, and comments or `Attributes:` of docstrings.

They are read from the sources: to import the modules takes seconds, as some lead to torch.
"""

import ast
import re
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_KINDS = {"str": "text", "Path": "text", "int": "whole number", "float": "number", "bool": "true or false"}
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_CODE = re.compile(r" \(see `.*?\)", re.DOTALL)  # a reference to code, which readers of JSON do not know


def class_fields(expression: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return what a class is, and name → kind and meaning of its fields; a meaning that is not documented is empty.

    The expression is its full name, with properties to add and fields to leave out: `a.b.Row + average - losses`.
    """
    path, *changes = re.split(r" (?=[+-] )", expression)
    module, _, name = path.rpartition(".")
    node = _definitions(module)[name]
    assert isinstance(node, ast.ClassDef)
    text = ast.get_docstring(node) or ""
    meanings = {found[1]: found[2] for found in _ATTRIBUTE.finditer(text)}
    source = _source(module).splitlines()
    fields = {}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name = line.target.id
            comment = source[(line.end_lineno or 0) - 1].partition("  # ")[2]
            fields[name] = _described(line.annotation, module, name, meanings.get(name, comment))
    properties = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    for change in changes:
        sign, field = change.split()
        if sign == "-":
            del fields[field]
        else:
            getter = properties[field]
            assert getter.returns is not None
            meaning = (ast.get_docstring(getter) or "").split("\n\n")[0]
            fields[field] = _described(getter.returns, module, field, meaning)
    return _sentence(text.split("\n\n")[0]), fields


def _described(annotation: ast.expr, module: str, name: str, text: str) -> tuple[str, str]:
    """Return the kind and meaning of a field; what stands before arrows in its text names the keys of mappings."""
    kind = _kind(annotation, module, re.findall(r"(\w+) → ", text.lower()))
    if name.removesuffix("s").endswith("digest"):
        kind = kind.replace("text", "digest")
    return kind, _sentence(re.sub(r"^([\w ,]+ → )+", "", text))


def _sentence(text: str) -> str:
    text = re.sub(r"\bNone\b", "null", " ".join(_CODE.sub("", text).split()))
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return text and f"{first}{text[1:].removesuffix('.')}."


def _kind(annotation: ast.expr, module: str, keys: list[str]) -> str:
    match annotation:
        case ast.BinOp(left=kind):
            return f"{_kind(kind, module, keys)} or null"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return ", ".join(f"`{word}`" for word in ast.literal_eval(words))
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[_, ast.Name(id="Any")])):
            return "object"
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[_, kind])):
            return f"by {keys[0] if keys else 'key'}: {_kind(kind, module, keys[1:])}"
        case ast.Subscript(slice=ast.Tuple(elts=items)):
            kinds = [_kind(item, module, keys) for item in items if not isinstance(item, ast.Constant)]
            return f"list of {' or '.join(dict.fromkeys(kinds))}"
        case ast.Subscript(slice=kind):
            return f"list of {_kind(kind, module, keys)}"
    name = ast.unparse(annotation).strip("'")
    return _KINDS.get(name) or _named(name, module)


def _named(name: str, module: str) -> str:
    """Return the kind that a name in a module stands for: that of its value, or the full name of a class."""
    match _definitions(module)[name]:
        case ast.ImportFrom(module=str(source)):
            return _named(name, source)
        case ast.Assign(value=value):
            return _kind(value, module, [])
    return f"{module}.{name}"


@cache
def _source(module: str) -> str:
    path = _ROOT.joinpath(*module.split("."))
    places = (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py")
    return next(place for place in places if place.is_file()).read_text(encoding="utf-8")


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Return name → statement that a module defines it by, or imports it."""
    found: dict[str, ast.stmt] = {}
    for node in ast.walk(ast.parse(_source(module))):
        match node:
            case ast.ClassDef(name=name):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = node
            case ast.ImportFrom(module=source, names=names, level=level):
                node.module = f"{module}.{source}" if level else source
                found |= {one.name: node for one in names}
    return found
