"""Proves: a user sees one clear message and the next command, exit code 1 (2 for usage), and never a traceback."""

import ast
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import registry.errors
from cli.main import main
from registry import Registry
from registry.errors import RegError
from tests.conftest import Zoo, files_of


def run(home: Path, *arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(main, ["--home", str(home), *map(str, arguments)], **options)


TOLD: dict[str, tuple[tuple[str, ...], str, str]] = {
    "unknown expert": (
        ("show", "mth"),
        "error: there is no expert 'mth'; did you mean 'math'?",
        "next: reg list",
    ),
    "unknown version": (
        ("compose", "--experts", "math@9", "--out", "{out}"),
        "math has no version 9; it has 1",
        "reg show math",
    ),
    "unknown alias": (("show", "math@old"), "math has no alias 'old'; it has none", "reg alias math@1 old"),
    "no name": (("add-expert", "../evil", "{ckpt}"), "name '../evil' is not of the form", "use lower-case letters"),
    "no folder": (("add-expert", "x", "{tmp}/absent"), "is not a folder", "name a local Hugging Face checkpoint"),
    "nearly a folder": (("add-expert", "x", "{ckpt}x"), "x is not a folder; did you mean '{ckpt}'?", "name a local"),
    "no checkpoint": (("add-expert", "x", "{tmp}"), "is not a checkpoint: it has no config.json", "save_pretrained"),
    "no data": (
        ("add-expert", "x", "{ckpt}", "--data", "{tmp}/absent.txt"),
        "is not a file",
        "name an existing",
    ),
    "checkpoint before the name": (
        ("add-expert", "{ckpt}", "x"),
        "is a checkpoint, and x is not: the name comes first",
        "swap them: reg add-expert x {ckpt}, and the same options",
    ),
    "base model before its name": (("add-base", "hf://org/model", "x"), "the name comes first", "reg add-base x hf://"),
    "text before the folder": (
        ("route", "a + b", "{ckpt}"),
        "the folder comes before the text",
        "reg route {ckpt} 'a + b'",
    ),
    "nearly a file": (
        ("add-expert", "x", "{ckpt}", "--data", "{ckpt}/../law.train.json"),
        "is not a file; did you mean '{ckpt}/../law.train.jsonl'?",
        "name an existing file",
    ),
    "empty subset": (("compose", "--experts", ",", "--out", "{out}"), "at least one expert", "--experts code,math"),
    "duplicate subset": (
        ("compose", "--experts", "math,math", "--out", "{out}"),
        "math is named more than once",
        "name each once",
    ),
    "base as expert": (
        ("compose", "--experts", "base,code", "--router", "ridge", "--out", "{out}"),
        "base@1 is a base model, which has no statistics of mlp_input, and router method 'ridge'",
        "as an expert too, with text: reg add-expert NAME CKPT --data FILE; or choose --router random --trunk mean",
    ),
    "top-k": (
        ("compose", "--experts", "math", "--top-k", "2", "--out", "{out}"),
        "top-k is 2, it must be 1, as there is one member",
        "give --top-k 1 or less, or name more --experts",
    ),
    "lam": (
        ("compose", "--experts", "math", "--router", "ridge", "--lam", "-1", "--out", "{out}"),
        "lam is -1.0",
        "the default is 0.01",
    ),
    "refine": (
        ("compose", "--experts", "math,code", "--refine", "1", "--out", "{out}"),
        "router method 'context' is made from counts of tokens",
        "drop --refine, or choose --router ridge",
    ),
    "weight of a stranger": (
        ("compose", "--experts", "math", "--weights", "law=2", "--out", "{out}"),
        "there is a weight for law, which is not a member",
        "members are: math",
    ),
    "output not empty": (
        ("compose", "--experts", "math", "--out", "{tmp}"),
        "exists and is not empty",
        "choose another --out",
    ),
    "output not ours": (
        ("compose", "--experts", "math", "--force", "--out", "{tmp}"),
        "was not composed by this program",
        "",
    ),
    "base without need": (
        ("compose", "--experts", "math", "--base", "base", "--out", "{out}"),
        "trunk method 'regmean' takes no base model",
        "drop --base",
    ),
    "alias to delete": (("alias", "math", "prod", "--delete"), "math has no alias 'prod'", "reg list --all"),
    "log of nothing": (("log", "mth"), "did you mean 'math'?", "reg list"),
    "no such composition": (("compositions", "0123456789ab"), "there is no composition", "reg compositions"),
    "version in place of a folder": (
        ("evaluate", "math@1", "--data", "math={tmp}/x"),
        "math@1 is not a folder",
        "reg export math@1 --out DIR",
    ),
    "no folder to audit": (
        ("audit-extraction", "moee", "--data", "{tmp}/x"),
        "moee is not a folder",
        "name folders that hold a model: reg audit-extraction moe/ --data FILE",
    ),
    "no such base model": (
        ("compose", "--experts", "math", "--trunk", "base", "--base", "bsae", "--out", "{out}"),
        "there is no base model 'bsae'; did you mean 'base'?",
        "register it: reg add-base bsae CKPT; those registered: reg list --kind base",
    ),
    "base model as a path": (
        ("compose", "--experts", "math", "--trunk", "base", "--base", "models/Base", "--out", "{out}"),
        "base model 'models/Base' is not a registered name",
        "reg add-base NAME models/Base",
    ),
    "no base model to train from": (
        ("train-expert", "new", "--base", "nothere", "--data", "{ckpt}/../law.train.jsonl"),
        "there is no base model 'nothere': no version of that name is registered, and no such folder exists",
        "reg add-base NAME CKPT; or give --base a folder",
    ),
    "temperature": (
        ("compose", "--experts", "math", "--temperature", "inf", "--out", "{out}"),
        "temperature is inf, it must be a finite number, more than 0",
        "the default is 0.05",
    ),
    "database": (("--database", "nonsense", "list"), "cannot use the database URL", "sqlite:////path/catalog.sqlite"),
    "receipt in no folder": (
        ("opt-out", "math", "--receipt", "{out}/receipt.json", "--yes"),
        "is not a folder",
        "create it, or choose another --receipt",
    ),
    "no receipt": (("receipt", "verify", "{tmp}/x"), "is not a file", "the file that reg opt-out --receipt wrote"),
    "nothing to reproduce": (("reproduce", "{tmp}"), "was not composed by this program", "name a composed folder"),
    "opt out a stranger": (("opt-out", "zzz", "--yes"), "there is no expert 'zzz'", "reg list"),
}


@pytest.mark.check(after=6)
@pytest.mark.trust(after=13)
@pytest.mark.parametrize("case", sorted(TOLD))
def test_mistakes_are_told(filled: Registry, zoo: Zoo, tmp_path: Path, case: str) -> None:
    words, message, hint = TOLD[case]
    out = tmp_path / "new" / "moe"
    home = filled.home.path
    before = files_of(home)
    result = run(home, *(word.format(tmp=tmp_path, out=out, ckpt=zoo.experts["law"]) for word in words))
    assert result.exit_code == 1
    assert result.stdout == ""
    checkpoint = str(zoo.experts["law"])
    assert message.replace("{ckpt}", checkpoint) in result.stderr
    assert hint.replace("{ckpt}", checkpoint) in result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    assert not out.parent.exists()
    after = files_of(home)
    assert {name: after[name] for name in before if "sqlite" not in name} == {
        name: data for name, data in before.items() if "sqlite" not in name
    }
    assert len(filled.versions()) == 6
    assert filled.compositions() == []


NEEDING_A_REGISTRY = {
    "list": ("list",),
    "show": ("show", "math"),
    "log": ("log",),
    "compositions": ("compositions",),
    "verify": ("verify",),
    "gc": ("gc",),
    "compose": ("compose", "--experts", "math", "--out", "moe"),
    "opt-out": ("opt-out", "math", "--yes"),
    "alias": ("alias", "math", "good"),
    "export": ("export", "math", "--out", "math"),
    "reproduce": ("reproduce", "moe"),
    "receipt verify": ("receipt", "verify", "receipt.json"),
    "db current": ("db", "current"),
}


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("command", sorted(NEEDING_A_REGISTRY))
def test_mistyped_home_makes_no_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, by_variable: bool
) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout may hold the tour's folders
    home = tmp_path / "hoem"
    for found in ("absent", "empty"):
        words = [*NEEDING_A_REGISTRY[command]]
        before = [home] if home.exists() else []
        result = CliRunner().invoke(main, words, env={"REG_HOME": str(home)}) if by_variable else run(home, *words)
        assert result.exit_code == 1, found
        assert result.stdout == ""
        assert f"error: there is no registry at {home}\n  next: name another folder" in result.stderr
        assert list(tmp_path.rglob("*")) == before
        home.mkdir(exist_ok=True)


def test_default_home_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.home._default", lambda: tmp_path / "home")
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 0
    assert result.stderr.startswith(f"nothing is registered in {tmp_path / 'home'}: ")
    assert result.stdout.split() == ["version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"]


@pytest.mark.parametrize("words", [("list",), ("gc",), ("db", "upgrade"), ("add-base", "base", "{ckpt}")], ids=" ".join)
def test_folder_of_something_else_is_made_no_registry(zoo: Zoo, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    result = run(tmp_path, *(word.format(ckpt=zoo.base) for word in words))
    assert result.exit_code == 1
    assert f"error: the folder {tmp_path} is not empty and holds no registry" in result.stderr
    assert "next: name a registry's folder with --home or REG_HOME" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_locks_left_by_an_interrupted_beginning_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "partial").mkdir()
    assert run(tmp_path, "db", "upgrade").exit_code == 0
    assert run(tmp_path, "list").exit_code == 0


USAGE: dict[str, tuple[tuple[str, ...], str]] = {
    "no such command": (("nonsense",), "there is no command 'nonsense'"),
    "empty home": (("--home", "", "list"), "error: --home is empty"),
    "empty database": (("--database", "", "list"), "error: --database is empty"),
    "no such option": (("list", "--nonsense"), "error: there is no option --nonsense\n  next: reg list --help"),
    "missing argument": (("add-expert", "math"), "error: CKPT is missing\n  next: reg add-expert --help"),
    "missing out": (("compose", "--experts", "math"), "give --out DIR, or --plan"),
    "no number": (("compose", "--experts", "a", "--lam", "x", "--out", "y"), "'x' is neither a number nor auto"),
    "no weight": (("compose", "--experts", "a", "--weights", "a", "--out", "y"), "'a' is not of the form NAME=WEIGHT"),
    "weight no number": (("compose", "--experts", "a", "--weights", "a=b", "--out", "y"), "the weight of a is 'b'"),
    "tag": (("add-base", "a", "b", "--tag", "x"), "'x' is not of the form K=V"),
    "tag to list by": (("list", "--tag", "nope"), "--tag: 'nope' is not of the form K=V"),
    "tag twice": (("add-base", "a", "b", "--tag", "a=1", "--tag", "a=2"), "'a' is given twice, as '1' and as '2'"),
    "weights": (("compose", "--experts", "a", "--weights", "math", "--out", "y"), "--weights: "),
    "weight twice": (("compose", "--experts", "a", "--weights", "a=1,a=2", "--out", "y"), "'a' is given twice"),
    "tokens no number": (("add-expert", "a", "b", "--tokens", "abc"), "'abc' is not a valid integer"),
    "domain": (("evaluate", "moe", "--data", "x"), "'x' is not of the form DOMAIN=FILE"),
    "trunk": (
        ("compose", "--experts", "a", "--trunk", "median", "--out", "y"),
        "'median' is not one of 'regmean', 'mean', 'base'",
    ),
    "tokens": (("add-expert", "a", "b", "--tokens", "0"), "0 is not in the range x>=1"),
}


@pytest.mark.parametrize("case", sorted(USAGE))
def test_usage_errors_exit_with_2(tmp_path: Path, case: str) -> None:
    words, message = USAGE[case]
    result = run(tmp_path / "home", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_fault_of_the_program_is_no_traceback_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("division by zero")

    Registry(tmp_path / "home").close()
    monkeypatch.setattr("registry.registry.Registry.versions", fault)
    result = run(tmp_path / "home", "list")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: ZeroDivisionError: division by zero",
        "  next: this is a bug in the program; REG_DEBUG=1 shows where, for a report",
    ]
    monkeypatch.setenv("REG_DEBUG", "1")
    assert isinstance(run(tmp_path / "home", "list").exception, ZeroDivisionError)


def test_reader_that_leaves_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    Registry(tmp_path / "home").close()
    monkeypatch.setattr("registry.registry.Registry.versions", leave)
    result = run(tmp_path / "home", "list")
    assert result.exit_code == 1
    assert result.stderr == ""


OF_THE_SYSTEM = {
    "path": (PermissionError(errno.EACCES, "Permission denied", "/x"), "Permission denied: /x", "may write there"),
    "no path": (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", "free some space there"),
    "other": (OSError(errno.EIO, "Input/output error", "/x"), "Input/output error: /x", "correct the cause"),
    "no number": (OSError("cannot load it"), "cannot load it", "correct the cause"),
}


@pytest.mark.parametrize("case", sorted(OF_THE_SYSTEM))
def test_refusal_of_the_system_is_no_fault_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    error, message, hint = OF_THE_SYSTEM[case]

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    Registry(tmp_path / "home").close()
    monkeypatch.setattr("registry.registry.Registry.versions", refuse)
    result = run(tmp_path / "home", "list")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == f"error: {message}"
    assert hint in result.stderr.splitlines()[1]
    monkeypatch.setenv("REG_DEBUG", "1")
    assert run(tmp_path / "home", "list").exception is error


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", [["list"], ["--help"], ["list", "--help"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_told(tmp_path: Path, words: list[str], unbuffered: str) -> None:
    Registry(tmp_path / "home").close()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from cli.main import main; main()", "--home", str(tmp_path / "home"), *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: No space left on device: standard output",
        "  next: free some space there, then repeat the command",
    ]


@pytest.mark.check
def test_every_error_names_the_next_step() -> None:
    kinds = {name for name in registry.errors.__all__ if name.endswith("Error")}
    bare = []
    for package in ("registry", "store", "cli"):
        for path in (Path(__file__).parents[2] / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds):
                    continue
                if len(node.args) + len(node.keywords) < 2:
                    bare.append(f"{path}:{node.lineno}")
    assert bare == []


def test_debug_shows_where_a_told_error_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REG_DEBUG", "1")
    assert isinstance(run(tmp_path / "home", "show", "x").exception, RegError)


def test_schema_that_is_not_ours_is_told_but_can_be_upgraded(tmp_path: Path) -> None:
    import sqlite3

    home = tmp_path / "home"
    Registry(home).close()
    with sqlite3.connect(home / "catalog.sqlite") as connection:
        connection.execute("UPDATE reg_schema SET version_num = 'ffffffffffff'")
    connection.close()
    result = run(home, "list")
    assert result.exit_code == 1
    assert "newer than this program's" in result.stderr
    assert run(home, "db", "current").stdout.startswith("ffffffffffff (this program works with")
    assert run(home, "db", "upgrade").exit_code == 1
