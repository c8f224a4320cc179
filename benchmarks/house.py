"""Figures of the code's structure, read from its syntax: modules at the root, floors and arrows of imports, parameters.

    python -m benchmarks.house [FOLDER]

A node is a module or package directly below `registry/`; an arrow joins two nodes if a file of one imports from the
other, inside functions and under TYPE_CHECKING too. Floors are the longest chain of arrows, a circle being one floor.
Parameters are those of every function and method, without `self` and `cls`.
"""

import ast
import json
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import quantiles


def main() -> None:
    """Print the figures of a checkout as JSON."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(json.dumps(figures(root), indent=2))


def figures(root: Path) -> dict[str, object]:
    """Return the figures of the checkout at `root`, by name."""
    package = root / "registry"
    arrows = import_arrows(package)
    circles = [group for group in components(arrows) if len(group) > 1]
    counts = sorted(parameters(package))
    return {
        "modules at the root of registry/": sum(path.suffix == ".py" for path in package.iterdir()),
        "modules and packages": len(arrows),
        "arrows": sum(map(len, arrows.values())),
        "floors": floors(arrows),
        "circles": [sorted(group) for group in circles],
        "functions": len(counts),
        "parameters, 90th percentile": round(quantiles(counts, n=10)[-1], 1),
        "parameters, most": counts[-1],
        "functions of more than 8 parameters": sum(count > 8 for count in counts),
    }


def import_arrows(package: Path) -> dict[str, set[str]]:
    """Return node → the nodes that it imports from."""
    nodes = {path.stem if path.suffix == ".py" else path.name for path in package.iterdir() if _is_node(path)}
    arrows: dict[str, set[str]] = {node: set() for node in nodes}
    for path in package.rglob("*.py"):
        below = path.relative_to(package).parts
        node = below[0].removesuffix(".py")
        if node == "__init__":
            continue
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            arrows[node] |= {name for name in _imported(statement) if name in nodes and name != node}
    return arrows


def components(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components: nodes that reach one another are in one."""
    reach = {node: _reachable(arrows, node) for node in arrows}
    found: list[set[str]] = []
    for node in arrows:
        group = {other for other in reach[node] if node in reach[other]} | {node}
        if group not in found:
            found.append(group)
    return found


def floors(arrows: dict[str, set[str]]) -> int:
    """Return the number of nodes on the longest chain of arrows; a circle counts as one."""
    group_of = {node: number for number, group in enumerate(components(arrows)) for node in group}
    above: dict[int, set[int]] = {number: set() for number in group_of.values()}
    for node, others in arrows.items():
        above[group_of[node]] |= {group_of[other] for other in others} - {group_of[node]}
    height: dict[int, int] = {}
    for number in TopologicalSorter(above).static_order():
        height[number] = 1 + max((height[other] for other in above[number]), default=0)
    return max(height.values())


def parameters(package: Path) -> Iterator[int]:
    """Yield the number of parameters of each function."""
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                yield sum(name not in ("self", "cls") for name in names)


def _is_node(path: Path) -> bool:
    return (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").is_file()


def _imported(statement: ast.AST) -> Iterator[str]:
    """Yield the children of `registry` that an import statement names."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.name.startswith("registry."):
                yield alias.name.split(".")[1]
    elif isinstance(statement, ast.ImportFrom) and statement.module:
        if statement.module == "registry":
            yield from (alias.name for alias in statement.names)
        elif statement.module.startswith("registry."):
            yield statement.module.split(".")[1]


def _reachable(arrows: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in arrows[waiting.pop()] - seen:
            seen.add(other)
            waiting.append(other)
    return seen


if __name__ == "__main__":
    main()
