"""Proves: a home that cannot be written is read as any other; what would write says which folder cannot be, and why.

Root may write everywhere, so these tests put root's rights down for a while.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registry import Registry
from registry.demo import run_demo  # noqa: F401 - imported while that is allowed
from tests.cli.conftest import PAIR, Reg
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
def reg(scratch: Path, zoo: Zoo) -> Reg:
    """The program on a registry of a base model and two experts, of which one is composed."""
    with Registry(scratch / "home") as registry:
        registry.add_base("base", zoo.base)
        registry.add_expert("math", zoo.experts["math"])
        registry.add_expert("code", zoo.experts["code"])
        registry.compose(["math"], scratch / "moe")
    return Reg(scratch / "home")


@pytest.mark.sqlite
@pytest.mark.check
def test_reading_works(reg: Reg, zoo: Zoo, scratch: Path) -> None:
    out = scratch / "out"
    out.mkdir()
    out.chmod(0o777)
    text = shutil.copy(zoo.test["math"], scratch / "text.jsonl")
    commands: list[tuple[object, ...]] = [
        ("evaluate", scratch / "moe", "--data", f"math={text}", "--windows", 1, "--seq-len", 32, "--baselines"),
        *(("list", "--json"), ("show", "math"), ("log",), ("compositions",), ("db", "current"), ("verify",)),
        ("compose", *PAIR, "--plan"),
        ("compose", *PAIR, "--to", "dense", "--like", text, "--plan"),
    ]
    allowed = [reg(*words) for words in commands]  # also imports what root alone may be able to read
    reg("export", "math", "--out", out / "allowed")
    before = files_of(reg.home)
    with without_rights(reg.home):
        refused = [reg(*words) for words in commands]
        reg("export", "math", "--out", out / "refused")
    for words, one, other in zip(commands, allowed, refused, strict=True):
        assert other.stdout == one.stdout, words
    (said,) = set(refused[0].stderr.splitlines()) - set(allowed[0].stderr.splitlines())
    assert said.startswith(f"the figures of moe are not stored: the folder {reg.home} cannot be written")
    assert files_of(out / "refused") == files_of(out / "allowed")
    assert files_of(reg.home) == before


@pytest.mark.sqlite
@pytest.mark.check
def test_writing_tells_which_folder_cannot_be_written(reg: Reg, scratch: Path) -> None:
    for command in ("list", "verify", "gc"):  # imports
        reg(command)
    before = files_of(reg.home)
    with without_rights(reg.home):
        for words in ("db upgrade", "alias math x", "gc", "opt-out code --yes"):
            told = reg(*words.split(), code=1).stderr
            assert f"error: the folder {reg.home}" in told
            assert "cannot be written: Permission denied" in told
            assert "next: repeat as a user who may write there" in told
        told = reg("compose", "--experts", "code", "--out", scratch / "new", code=1).stderr
        assert f"error: the folder {reg.home}" in told
    assert files_of(reg.home) == before
    assert not (scratch / "new").exists()


def test_folder_that_cannot_be_made_is_told(scratch: Path) -> None:
    (scratch / "nope").mkdir()
    with without_rights(scratch / "nope"):
        result = Reg(scratch / "home")("demo", "--out", scratch / "nope" / "demo", code=1)
    assert result.stderr.splitlines() == [
        f"error: Permission denied: {scratch / 'nope' / 'demo'}",
        "  next: repeat as a user who may write there, or choose another path",
    ]
