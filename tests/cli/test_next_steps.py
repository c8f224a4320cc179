"""Proves: a command that succeeds ends with one line on stderr, what to type next, and that line parses."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from cli.next_steps import loading
from registry import Registry
from registry.output.fresh import fresh
from tests.conftest import Zoo
from tests.test_docs import parse

NEXT = "  next: "
SMALL = ("--windows", "1", "--seq-len", "32", "--device", "cpu")
TINY = ("--batch-size", "2", "--seq-len", "32", "--device", "cpu")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(home: Path, *words: object) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def following(result: Result) -> str:
    """Return the line that follows, which is the last one and the only one of its kind, and parses."""
    lines = [line for line in result.stderr.splitlines() if NEXT in line]
    assert lines == result.stderr.splitlines()[-1:]
    line = lines[0].removeprefix(NEXT)
    command = line[line.index("reg ") :]
    parse(command)
    return command


@pytest.mark.check
def test_what_follows_a_command_parses_and_names_the_registry(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    home, math, text = filled.home.path, zoo.test["math"], ("--data", f"math={zoo.test['math']}")
    reg = f"reg --home {home}"
    steps: list[tuple[tuple[object, ...], str]] = [
        (("list",), "show base@1"),
        (("show", "base"), "train-expert NAME --base base@1 --data FILE"),
        (("show", "code"), "compose --experts biomed,code,german,law,math --out moe/"),
        (("alias", "math", "good"), "show math@good"),
        (("alias", "math", "good", "--delete"), "show math"),
        (("preview", "--experts", "code,math", "--top-k", 2), "compose --experts code,math --top-k 2 --out moe/"),
        (("compose", "--experts", "code", "--experts", "math", "--trunk", "mean", "--plan"),
         "compose --experts code --experts math --trunk mean --out moe/"),
        (("compose", "--experts", "code,math", "--router", "ridge", "--out", "moe"),
         "evaluate moe --data code=FILE --data math=FILE"),
        (("compositions",), "show {digest}"),
        (("show", "math"), "show {digest}"),
        (("show", "{digest}"), "report {digest} --out report.html"),
        (("report", "moe", "--out", "unscored.html"), "evaluate moe --data code=FILE --data math=FILE"),
        (("report", "{digest}", "--out", "by-digest.html"), f"evaluate {tmp_path / 'moe'} --data code=FILE --data"),
        (("evaluate", "moe", *text, *SMALL), "report moe --out report.html"),
        (("route", "moe", "a text"), "report moe --out report.html"),
        (("report", "moe", "--out", "report.html"), "push moe ORG/NAME"),
        (("reproduce", "moe"), "evaluate moe --data code=FILE --data math=FILE"),
        (("lam-curve", "--experts", "code,math"), "compose --experts code,math --router ridge --lam auto --out moe-2/"),
        (("evaluate", "--experts", "code,math", "--methods", "average", *text, *SMALL),
         "compose --experts code,math --out moe-2/"),
        (("continual", "--schedule", "math", *text, *SMALL, "--trunk", "mean"),
         "compose --experts math --trunk mean --out moe-2/"),
        (("export", "math", "--out", "my math"), "evaluate 'my math' --data math=FILE"),
        (("log",), "verify"),
        (("gc", "--dry-run"), "gc"),
        (("check", zoo.base, "--data", math, "--tokens", 64, *TINY), f"add-expert NAME {zoo.base} --data {math}"),
        (("check", zoo.experts["code"]), "show code@1"),
        (("collect", zoo.base, "--data", math, "--out", "c", "--tokens", 64, *TINY), f"add-expert NAME {zoo.base}"),
        (("add-base", "other", zoo.base), "add-expert NAME CKPT"),
        (("add-expert", "code", zoo.experts["code"]), "show code@1"),
        (("train-router", "moe", "--data", zoo.train["code"], "--steps", 2, "--out", "t", *TINY),
         "evaluate moe t --data code=FILE --data math=FILE"),
        (("train-soup", "mix", "--base", "base", "--domains", zoo.train["code"], "--domains", zoo.train["math"],
          "--experts", 1, "--tokens", 128, *TINY), "instantiate mix --weights code=1 --out model/"),
        (("instantiate", "mix", "--weights", "math=1", "--out", "m"), "evaluate m --data math=FILE"),
        (("train-expert", "new", "--base", "base", "--data", zoo.train["code"], "--tokens", 128, "--out", "new", *TINY),
         f"add-expert new {tmp_path / 'new'}"),
        (("opt-out", "law", "--yes", "--receipt", "law receipt.json"), "receipt verify 'law receipt.json'"),
    ]  # fmt: skip
    for words, expected in steps:
        made = filled.compositions()
        digest = made[0].digest[:12] if made else ""
        result = run(home, *(str(word).replace("{digest}", digest) for word in words))
        found = following(result)
        assert found.startswith(f"{reg} {expected.replace('{digest}', digest)}"), words
        assert NEXT not in result.stdout


@pytest.mark.check
def test_two_experts_of_one_base_model_are_composed(registry: Registry, zoo: Zoo) -> None:
    home = registry.home.path
    assert following(run(home, "add-base", "base", zoo.base)).endswith(" add-expert NAME CKPT")
    words = ("train-expert", "one", "--base", "base", "--data", zoo.train["code"], "--tokens", 128, *TINY)
    assert following(run(home, *words)).endswith((" add-expert NAME CKPT", " opt-out one@1"))
    other = ("train-expert", "two", "--base", "base", "--data", zoo.train["math"], "--tokens", 2048, *TINY)
    assert following(run(home, *other)).endswith(" compose --experts one,two --out moe/")
    assert following(run(home, "show", "two")).endswith(" compose --experts one,two --out moe/")


@pytest.mark.check(after=1)
@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_nothing_follows_where_only_the_result_is_asked_for(filled: Registry, option: str) -> None:
    for words in (("list",), ("show", "math"), ("compose", "--experts", "code,math", "--plan"), ("log",)):
        assert run(filled.home.path, *words, option).stderr == ""
        assert run(filled.home.path, option, *words).stderr == ""


def test_a_registry_of_the_environment_is_not_repeated(filled: Registry) -> None:
    result = CliRunner().invoke(main, ["show", "math"], env={"REG_HOME": str(filled.home.path)})
    assert following(result).startswith("reg compose --experts ")


def test_a_password_is_not_repeated(filled: Registry) -> None:
    url = f"sqlite:///{filled.home.path / 'catalog.sqlite'}"
    assert f"--database {url} " in following(run(filled.home.path, "--database", url, "list"))
    result = run(filled.home.path, "--database", f"{url}?password=hunter2", "config")
    assert "hunter2" not in result.output
    from cli.output import _SECRET

    assert _SECRET.sub(r"\1\2***", "postgresql://me:hunter2@host/db") == "postgresql://me:***@host/db"


def test_quiet_prints_names_and_digests(filled: Registry) -> None:
    home = filled.home.path
    assert run(home, "list", "-q").stdout.split("\n") == [*(version.ref for version in filled.versions()), ""]
    assert run(home, "-q", "list", "--kind", "base").stdout == "base@1\n"
    planned = json.loads(run(home, "compose", "--experts", "code,math", "--plan", "--json").stdout)
    assert run(home, "compose", "--experts", "code,math", "--plan", "-q").stdout == f"{planned['digest']}\n"


def test_a_path_that_exists_is_not_suggested(tmp_path: Path) -> None:
    assert (fresh("moe/"), fresh("report.html")) == ("moe/", "report.html")
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe-2").mkdir()
    (tmp_path / "report.html").touch()
    assert (fresh("moe/"), fresh("report.html")) == ("moe-3/", "report-2.html")


def test_a_pushed_model_is_loaded_by_transformers() -> None:
    python, option, code = shlex.split(loading("org/moe", "v1"))
    assert (python, option) == ("python", "-c")
    compile(code, "line", "exec")
    assert 'from_pretrained("org/moe", revision="v1")' in code
    assert "revision" not in loading("org/moe", "main")


def test_experts_that_routing_cannot_separate_are_not_suggested_together(filled: Registry, zoo: Zoo) -> None:
    added = run(filled.home.path, "add-expert", "twin", zoo.experts["math"])
    assert "100% overlap of activations with math@1: a linear router can hardly separate their tokens" in added.stdout
    experts = shlex.split(following(added))[5].split(",")
    assert "twin" in experts
    assert len(experts) == 4
    assert "math" not in experts


@pytest.mark.check
def test_a_version_with_weights_of_an_earlier_one_says_what_differs(filled: Registry, zoo: Zoo) -> None:
    added = run(filled.home.path, "add-expert", "math", zoo.experts["math"], "--license", "mit")
    assert "it has the weights of math@1, but differs in: license (none there, mit here)\n" in added.stderr
    changed = ("--data", zoo.train["law"], "--tokens", 64, "--seq-len", 32, "--keep-calibration")
    added = run(filled.home.path, "add-expert", "math", zoo.experts["math"], *changed)
    differs = "settings of the statistics, license (mit there, none here), text of the statistics"
    assert f"it has the weights of math@2, but differs in: {differs}\n" in added.stderr
