"""Proves: a home that cannot be written is read as any other; what would write says which folder cannot be, and why.

Root may write everywhere, so these tests put root's rights down for a while.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from registry.demo import run_demo  # noqa: F401 - imported while that is allowed
from tests.conftest import Zoo, files_of

NOBODY = 65534


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Take the right to write below `folder` from this process."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in (*folders, *files):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path in (*folders, *files):
            if path.exists():
                path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that everybody may look into, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(scratch: Path, zoo: Zoo) -> Path:
    with Registry(scratch / "home") as registry:
        registry.add_base("base", zoo.base)
        registry.add_expert("math", zoo.experts["math"])
        registry.add_expert("code", zoo.experts["code"])
        registry.compose(["math"], scratch / "moe")
    return scratch / "home"


@pytest.fixture
def run(home: Path) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(main, ["--home", str(home), *map(str, words)])


@pytest.mark.check
def test_reading_works(run: Callable[..., Result], home: Path, zoo: Zoo, scratch: Path) -> None:
    out = scratch / "out"
    out.mkdir()
    out.chmod(0o777)
    text = shutil.copy(zoo.test["math"], scratch / "text.jsonl")
    commands: list[list[object]] = [
        ["evaluate", scratch / "moe", "--data", f"math={text}", "--windows", 1, "--seq-len", 32, "--baselines"],
        ["list", "--json"],
        ["show", "math"],
        ["log"],
        ["compositions"],
        ["db", "current"],
        ["verify"],
        ["compose", "--experts", "math,code", "--plan"],
        ["lam-curve", "--experts", "math,code"],
        ["compose", "--experts", "math,code", "--to", "dense", "--like", text, "--plan"],
    ]
    allowed = [run(*words) for words in commands]  # also imports what root alone may be able to read
    assert run("export", "math", "--out", out / "allowed").exit_code == 0
    before = files_of(home)
    with without_rights(home):
        refused = [run(*words) for words in commands]
        exported = run("export", "math", "--out", out / "refused")
    for words, one, other in zip(commands, allowed, refused, strict=True):
        assert other.exit_code == 0, (words, other.output)
        assert other.stdout == one.stdout
    (said,) = set(refused[0].stderr.splitlines()) - set(allowed[0].stderr.splitlines())
    assert said.startswith(f"the figures of moe are not stored: the folder {home} cannot be written")
    assert exported.exit_code == 0, exported.output
    assert files_of(out / "refused") == files_of(out / "allowed")
    assert files_of(home) == before


@pytest.mark.check
def test_writing_tells_which_folder_cannot_be_written(run: Callable[..., Result], home: Path, scratch: Path) -> None:
    commands: list[list[object]] = [
        ["db", "upgrade"],
        ["alias", "math", "x"],
        ["gc"],
        ["compose", "--experts", "code", "--out", scratch / "new"],
        ["opt-out", "code", "--yes"],
    ]
    for command in ("list", "verify", "gc"):  # imports
        assert run(command).exit_code == 0
    before = files_of(home)
    with without_rights(home):
        results = [run(*words) for words in commands]
    for words, result in zip(commands, results, strict=True):
        assert result.exit_code == 1, words
        assert f"error: the folder {home}" in result.stderr, (words, result.output)
        assert "cannot be written: Permission denied" in result.stderr
        assert "next: repeat as a user who may write there" in result.stderr
    assert files_of(home) == before
    assert not (scratch / "new").exists()


def test_folder_that_cannot_be_made_is_told(scratch: Path) -> None:
    (scratch / "nope").mkdir()
    with without_rights(scratch / "nope"):
        result = CliRunner().invoke(main, ["demo", "--out", str(scratch / "nope" / "demo")])
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"error: Permission denied: {scratch / 'nope' / 'demo'}",
        "  next: repeat as a user who may write there, or choose another path",
    ]
