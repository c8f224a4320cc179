"""The folder of a demo, and its text of three domains, without a download: code, English, generated arithmetic."""

import ast
import gzip
import json
import os
import random
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from registry.errors import CheckpointError, OutputError
from registry.io.disk import atomic_file

MARKER = "demo.json"  # the file that marks a folder as one of the demo
DOMAIN_CHARACTERS = 800_000  # at most so many characters per domain

_TEST_SHARE = 10  # one document in ten is for testing


def check_demo_folder(out: Path) -> None:
    """Check that a demo can be made in `out` (OutputError: it is a file, or holds something else)."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} exists and is not a folder", "choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise OutputError(f"{out} is not empty and was not made by the demo", "choose another --out")


def write_domains(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Write each domain's documents; return its files for training and testing (CheckpointError: no sources)."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for domain, make in DOMAINS.items():
        documents = list(_limited(make()))
        if len(documents) < 2 * _TEST_SHARE:
            raise CheckpointError(
                "this Python has no source of its standard library, from which the demo takes its text",
                "run the demo with another Python",
            )
        train, test = domain_files(folder, domain)
        _write(train, [text for i, text in enumerate(documents) if i % _TEST_SHARE])
        _write(test, documents[::_TEST_SHARE])
        paths[domain] = (train, test)
    return paths


def domain_files(folder: Path, domain: str) -> tuple[Path, Path]:
    """Return the files with a domain's text for training and for testing."""
    return folder / f"{domain}.train.jsonl.gz", folder / f"{domain}.test.jsonl.gz"


def _code() -> Iterator[str]:
    """Yield standard modules without comments and docstrings."""
    for source in _modules():
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if _docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        yield ast.unparse(tree)


def _english() -> Iterator[str]:
    """Yield the docstrings of standard modules, one document per module."""
    for source in _modules():
        texts = [text for node in ast.walk(ast.parse(source)) if (text := _docstring(node)) and len(text) > 60]
        if texts:
            yield "\n\n".join(texts)


def _math() -> Iterator[str]:
    """Yield word problems with worked answers."""
    draw = random.Random(0)
    while True:
        yield "\n".join(draw.choice(_PROBLEMS)(draw) for _ in range(12))


def _shopping(draw: random.Random) -> str:
    count, price, paid = draw.randint(2, 12), draw.randint(2, 20), 0
    total = count * price
    paid = (total // 50 + 1) * 50
    thing = draw.choice(("pens", "books", "apples", "tickets", "lamps"))
    return (
        f"Problem: {count} {thing} cost {price} dollars each. You pay with {paid} dollars. What is the change?\n"
        f"Answer: {count} * {price} = {total} and {paid} - {total} = {paid - total}. The change is {paid - total}.\n"
    )


def _travel(draw: random.Random) -> str:
    speed, hours = draw.randint(3, 30) * 5, draw.randint(2, 9)
    return (
        f"Problem: A train travels {speed} km every hour. How far does it travel in {hours} hours?\n"
        f"Answer: {speed} * {hours} = {speed * hours}. It travels {speed * hours} km.\n"
    )


def _equation(draw: random.Random) -> str:
    a, x, b = draw.randint(2, 12), draw.randint(1, 20), draw.randint(1, 50)
    return (
        f"Problem: Solve {a}x + {b} = {a * x + b} for x.\n"
        f"Answer: {a}x = {a * x + b} - {b} = {a * x}, so x = {a * x} / {a} = {x}.\n"
    )


def _sum(draw: random.Random) -> str:
    numbers = [draw.randint(1, 99) for _ in range(4)]
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}")
        total += number
    return f"Problem: Add {', '.join(map(str, numbers))}.\nAnswer: {', '.join(steps)}. The sum is {total}.\n"


_PROBLEMS: tuple[Callable[[random.Random], str], ...] = (_shopping, _travel, _equation, _sum)
DOMAINS: dict[str, Callable[[], Iterator[str]]] = {"code": _code, "english": _english, "math": _math}


def _modules() -> Iterator[str]:
    skipped = {"test", "tests", "site-packages", "idlelib", "lib2to3", "encodings", "pydoc_data", "__pycache__"}
    for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - skipped)
        for path in (Path(folder, name) for name in sorted(files) if name.endswith(".py")):
            if path.stat().st_size < 100_000:
                yield path.read_text(encoding="utf-8", errors="replace")


def _docstring(node: ast.AST) -> str | None:
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return ast.get_docstring(node)
    return None


def _limited(documents: Iterator[str]) -> Iterator[str]:
    total = 0
    for text in documents:
        if len(text) >= 200:
            yield text
            total += len(text)
        if total > DOMAIN_CHARACTERS:
            return


def _write(path: Path, documents: list[str]) -> None:
    with atomic_file(path) as fresh, gzip.open(fresh, "wt", encoding="utf-8") as file:
        for text in documents:
            file.write(json.dumps({"text": text}) + "\n")
