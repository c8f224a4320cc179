"""Proves: the tree keeps its rules, which CONTRIBUTING.md describes and the linters do not cover.

Few modules at the root and in each folder; no import of the project's own modules inside
functions, none in a circle; a facade that only delegates; docstrings that begin with the thing that they describe.
"""

import ast
import functools
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.house import components, import_arrows
from tests.running import ROOT

REGISTRY = ROOT / "registry"
PACKAGES = ("cli", "registry", "store")

INTERFACES = tuple(f"registry/composition/{name}.py" for name in ("method", "plan", "card"))
KINDS = ("Output", "Target", "Trunk", "Router", "Combined")
"""Modules and base classes of methods, whose declarations are loaded for help and lists."""

NOT_A_THING = re.compile(r"(What|Whether|How|Where|Who|That|Of)\b")
"""How no docstring begins: it names the thing with a noun or a verb."""

TELLING = re.compile(
    r"\b(anew|foretold|see there)\b|\b(is|are|was|were) none of\b|\bthat (is|are) none\b", re.IGNORECASE
)
"""Words of this project's own where plain English will do."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def nodes_of(package: str) -> dict[Path, list[ast.AST]]:
    """Return every node of the syntax of every module of a package."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


@functools.cache
def is_declared(path: Path) -> bool:
    """Tell whether a module declares a method, or what all methods have in common."""
    return name_of(path) in INTERFACES or any(
        isinstance(node, ast.ClassDef) and any(ast.unparse(base) in KINDS for base in node.bases)
        for node in nodes_of("registry").get(path, ())
    )


def names_in(node: ast.AST) -> set[str]:
    """Return the modules that a statement imports; a name of one may be a module, too."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def test_folders_are_small() -> None:
    modules = [path for path in REGISTRY.rglob("*.py") if path.name != "__init__.py"]
    assert len(list(REGISTRY.glob("*.py"))) <= 8
    folders = Counter(name_of(path.parent) for path in modules)
    assert {folder: count for folder, count in folders.items() if count > 20} == {}


@pytest.mark.check
def test_modules_import_at_their_top() -> None:
    """In `registry` no import of the project is indented, in `store` none is under TYPE_CHECKING.

    The declarations of methods, their interfaces and model cards are loaded for help alone: they import what computes
    where it is called, and types for the type checker.
    """
    hidden = [
        (path, ast.walk(one)) for path, nodes in nodes_of("store").items() for one in nodes if isinstance(one, ast.If)
    ]
    for path, nodes in [*nodes_of("registry").items(), *hidden]:
        for node in nodes:
            if isinstance(node, ast.stmt) and node.col_offset and not is_declared(path):
                own = {name.split(".")[0] for name in names_in(node)} & {*PACKAGES}
                assert not own, f"{name_of(path)}:{node.lineno}: import the package at the top: its names load lazily"


@pytest.mark.check
def test_imports_form_no_circle() -> None:
    """First package by package, then module by module; not in what declarations of methods import later."""
    assert [group for group in components(import_arrows(REGISTRY)) if len(group) > 1] == []
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): (path, nodes)
        for path, nodes in nodes_of("registry").items()
    }
    arrows = {
        name: {
            other
            for node in nodes
            if not (is_declared(path) and getattr(node, "col_offset", False))
            for other in names_in(node)
            if other in modules and other != name
        }
        for name, (path, nodes) in modules.items()
    }
    assert [sorted(group) for group in components(arrows) if len(group) > 1] == []


def test_methods_of_the_facade_have_at_most_three_statements() -> None:
    tree = ast.parse((REGISTRY / "registry.py").read_text(encoding="utf-8"))
    (facade,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert (facade.name, facade.bases) == ("Registry", [])
    for method in facade.body:
        if isinstance(method, ast.FunctionDef):
            body = method.body[1:] if ast.get_docstring(method) else method.body
            assert len(body) <= 3, f"Registry.{method.name} has {len(body)} statements"


def test_packages_offer_what_their_stubs_say() -> None:
    """A name that is also a module's must be defined in that module, or the module would hide it."""
    for stub in REGISTRY.rglob("__init__.pyi"):
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        modules = {path.stem for path in stub.parent.glob("*.py")} | {path.name for path in stub.parent.iterdir()}
        tree = ast.parse(stub.read_text(encoding="utf-8"))
        for node in (one for one in tree.body if isinstance(one, ast.ImportFrom)):
            for alias in node.names:
                offered = getattr(importlib.import_module(package), alias.name)
                assert offered is getattr(importlib.import_module(f"{package}.{node.module}"), alias.name)
                assert alias.name not in modules or alias.name == node.module, f"{package}: {alias.name}"


@pytest.mark.check
@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_in_plain_words(package: str) -> None:
    for path, nodes in nodes_of(package).items():
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                where = f"{name_of(path)}:{getattr(node, 'lineno', 1)}: {text.partition(chr(10))[0]}"
                assert not NOT_A_THING.match(text), where
                assert not TELLING.search(text), where
