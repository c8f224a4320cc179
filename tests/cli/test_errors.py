"""Proves: a user sees one clear message and the next command, exit code 1 (2 for usage), and never a traceback."""

import ast
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import registry.errors
from cli.main import main
from registry import Registry
from registry.errors import RegError
from tests.cli.conftest import ROOT, Reg
from tests.conftest import Zoo

NEEDING_A_REGISTRY = (
    *("list", "show math", "log", "compositions", "verify", "gc", "compose --experts math --out moe"),
    *("opt-out math --yes", "alias math good", "export math --out math", "reproduce moe"),
    *("receipt verify receipt.json", "db current", "ui --port 0"),
)


@pytest.mark.parametrize("command", NEEDING_A_REGISTRY)
def test_mistyped_home_makes_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout may hold the tour's folders
    home, words = tmp_path / "hoem", command.split()
    for found in ("absent", "empty"):
        before = [home] if home.exists() else []
        by_variable = CliRunner().invoke(main, words, env={"REG_HOME": str(home)})
        for result in (Reg(home)(*words, code=1), by_variable):
            assert (result.exit_code, result.stdout) == (1, ""), found
            assert f"error: there is no registry at {home}\n  next: name another folder" in result.stderr
        assert list(tmp_path.rglob("*")) == before
        home.mkdir(exist_ok=True)


@pytest.mark.parametrize("words", ["list", "gc", "db upgrade", "add-base base {ckpt}"])
def test_folder_of_something_else_is_made_no_registry(zoo: Zoo, tmp_path: Path, words: str) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    told = Reg(tmp_path)(*words.format(ckpt=zoo.base).split(), code=1).stderr
    assert f"error: the folder {tmp_path} is not empty and holds no registry" in told
    assert "next: name a registry's folder with --home or REG_HOME" in told
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_home_that_is_a_file_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("x")
    assert Reg(tmp_path / "home")("list", code=1).stderr.splitlines() == [
        f"error: {tmp_path / 'home'} is a file, and a registry's home is a folder",
        "  next: name a folder with --home or REG_HOME",
    ]


@pytest.mark.sqlite
def test_locks_left_by_an_interrupted_beginning_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "partial").mkdir()
    Reg(tmp_path)("db", "upgrade")
    Reg(tmp_path)("list")


RIGHTS = "repeat as a user who may write there, or choose another path"
SPACE, CAUSE = "free some space there, then repeat the command", "correct the cause, then repeat the command"
BUG = "this is a bug in the program; REG_DEBUG=1 shows where, for a report"
FAULTS: dict[str, tuple[Exception, tuple[str, ...]]] = {
    "of the program": (ZeroDivisionError("by zero"), ("ZeroDivisionError: by zero", BUG)),
    "of a path": (PermissionError(errno.EACCES, "Permission denied", "/x"), ("Permission denied: /x", RIGHTS)),
    "of no path": (OSError(errno.ENOSPC, "No space left"), ("No space left", SPACE)),
    "of another number": (OSError(errno.EIO, "Input/output error", "/x"), ("Input/output error: /x", CAUSE)),
    "of no number": (OSError("cannot load it"), ("cannot load it", CAUSE)),
    "that is known": (RegError("it is known", "mend it"), ("it is known", "mend it")),
    "of who reads no more": (BrokenPipeError(errno.EPIPE, "Broken pipe"), ()),
}


@pytest.mark.sqlite
@pytest.mark.parametrize("case", FAULTS)
def test_fault_has_a_message_and_a_traceback_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    error, lines = FAULTS[case]

    def fail(*_: Any, **__: Any) -> None:
        raise error

    Registry(tmp_path / "home").close()
    monkeypatch.setattr("registry.registry.Registry.versions", fail)
    told = Reg(tmp_path / "home")("list", code=1).stderr
    assert told.splitlines() == [f"{word}: {text}" for word, text in zip(("error", "  next"), lines, strict=False)]
    if lines:
        monkeypatch.setenv("REG_DEBUG", "1")
        assert Reg(tmp_path / "home")("list", code=1).exception is error


@pytest.mark.sqlite
@pytest.mark.check(after=1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("words", "unbuffered"), [("list", ""), ("list", "1"), ("--help", "")])
def test_output_that_cannot_be_written_is_told(tmp_path: Path, words: str, unbuffered: str) -> None:
    Registry(tmp_path / "home").close()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "--home", str(tmp_path / "home"), words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert done.stderr == f"error: No space left on device: standard output\n  next: {SPACE}\n"


@pytest.mark.check
def test_every_error_names_the_next_step() -> None:
    kinds = {name for name in vars(registry.errors) if name.endswith("Error")}
    bare = []
    for package in ("registry", "store", "cli"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds):
                    continue
                is_pair = any(isinstance(one, ast.Starred) for one in node.args)  # message and next step
                if len(node.args) + len(node.keywords) < 2 and not is_pair:
                    bare.append(f"{path}:{node.lineno}")
    assert bare == []


@pytest.mark.sqlite
def test_schema_that_is_not_ours_is_told_but_can_be_upgraded(tmp_path: Path) -> None:
    reg = Reg(tmp_path / "home")
    Registry(reg.home).close()
    with sqlite3.connect(reg.home / "catalog.sqlite") as connection:
        connection.execute("UPDATE reg_schema SET version_num = 'ffffffffffff'")
    connection.close()
    assert "newer than this program's" in reg("list", code=1).stderr
    assert reg("db", "current").stdout.startswith("ffffffffffff (this program works with")
    reg("db", "upgrade", code=1)
