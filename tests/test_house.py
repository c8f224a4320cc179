"""Proves: the tree keeps its rules, which CONTRIBUTING.md describes and the linters do not cover.

Few modules at the root and in each folder; one module per name; no import of the project's own modules inside
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

ROOT = Path(__file__).parents[1]
REGISTRY = ROOT / "registry"
PACKAGES = ("cli", "registry", "store")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

SAME_STEM = {
    "refit": "maths/refit.py is the least-squares problem, composition/refit/ the pass that poses it",
    "statistics": "the package and its mathematics",
    "ensemble": "the package of ensembles and their model card",
    "mixture": "the training of mixtures and the model card of one",
    "recipe": "of mixtures and of ensembles",
    "plan": "of mixtures and of ensembles",
    "write": "of mixtures and of ensembles",
    "settings": "of passes, and of trainings",
    "verify": "of a registry's arrays",
    "compositions": "a page of the user interface",
    "opt_out": "the package and its method",
}
"""Stems that two modules of `registry` may share, and why."""

TELLING = re.compile(
    r"\b(anew|foretold|see there)\b|\b(is|are|was|were) none of\b|\bthat (is|are) none\b", re.IGNORECASE
)
"""Words of this project's own where plain English will do."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def trees(package: Path) -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(package.rglob("*.py"))]


def first_party(node: ast.AST) -> bool:
    """Tell whether a statement imports a module of the project."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in PACKAGES
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] in PACKAGES for alias in node.names)


def test_the_root_of_registry_has_at_most_eight_modules() -> None:
    assert len(list(REGISTRY.glob("*.py"))) <= 8


def test_no_folder_has_more_than_twenty_modules() -> None:
    folders = Counter(path.parent for path in REGISTRY.rglob("*.py") if path.name != "__init__.py")
    assert {name_of(folder): count for folder, count in folders.items() if count > 20} == {}


def test_no_two_modules_share_a_stem() -> None:
    stems = Counter(
        path.stem
        for path in REGISTRY.rglob("*.py")
        if path.name != "__init__.py" and path.parent.name not in ("families", "hosts")
    )
    stems.update(path.parent.name for path in REGISTRY.rglob("__init__.py") if path.parent != REGISTRY)
    stems.subtract({path.name for path in REGISTRY.iterdir() if path.is_dir() and (path / f"{path.name}.py").exists()})
    assert {stem for stem, count in stems.items() if count > 1} <= set(SAME_STEM)


@pytest.mark.check
def test_modules_import_at_their_top() -> None:
    late = [
        f"{name_of(path)}:{inner.lineno}"
        for path, tree in trees(REGISTRY)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if first_party(inner) and isinstance(inner, ast.stmt)
    ]
    assert late == [], "import the package at the top: its names load their modules when they are first used"


def test_type_checking_hides_no_import_of_the_project() -> None:
    hidden = [
        f"{name_of(path)}:{inner.lineno}"
        for package in ("registry", "store")
        for path, tree in trees(ROOT / package)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if first_party(inner) and isinstance(inner, ast.stmt)
    ]
    assert hidden == []


@pytest.mark.check
def test_imports_form_no_circle() -> None:
    """First package by package, then module by module; imports under TYPE_CHECKING count too."""
    assert [group for group in components(import_arrows(REGISTRY)) if len(group) > 1] == []
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in trees(REGISTRY)
    }
    arrows: dict[str, set[str]] = {name: set() for name in modules}
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            elif isinstance(node, ast.Import):
                named = {alias.name for alias in node.names}
            else:
                continue
            arrows[name] |= {other for other in named if other in modules and other != name}
    assert [sorted(group) for group in components(arrows) if len(group) > 1] == []


def test_methods_of_the_facade_have_at_most_three_statements() -> None:
    tree = ast.parse((REGISTRY / "registry.py").read_text(encoding="utf-8"))
    (facade,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert facade.name == "Registry"
    assert facade.bases == []
    for method in facade.body:
        if isinstance(method, ast.FunctionDef):
            body = method.body[1:] if ast.get_docstring(method) else method.body
            assert len(body) <= 3, f"Registry.{method.name} has {len(body)} statements"


@pytest.mark.parametrize("stub", sorted(REGISTRY.rglob("__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_packages_offer_what_their_stubs_say(stub: Path) -> None:
    """A name that is also a module's must be defined in that module, or the module would hide it."""
    package = ".".join(stub.parent.relative_to(ROOT).parts)
    modules = {path.stem for path in stub.parent.glob("*.py")} | {path.name for path in stub.parent.iterdir()}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            offered = getattr(importlib.import_module(package), alias.name)
            assert offered is getattr(importlib.import_module(f"{package}.{node.module}"), alias.name)
            assert alias.name not in modules or alias.name == node.module


@pytest.mark.check(after=244)
@pytest.mark.trust(after=523)
@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_docstrings_are_in_plain_words(path: Path) -> None:
    """The first line names the thing with a noun or a verb."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        where = f"{name_of(path)}:{getattr(node, 'lineno', 1)}"
        assert not re.match(r"(What|Whether|How|Where|Who|That|Of)\b", text), f"{where}: {text.splitlines()[0]}"
        assert not TELLING.search(text), f"{where}: {TELLING.search(text)}"
