"""Proves: a command that succeeds ends with one line on stderr, what to type next, and that line parses."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from cli.next_steps import loading
from cli.output import _SECRET
from registry import Registry
from registry.names.suggest import fresh
from tests.cli.conftest import PAIR, TINY, Reg, some_text
from tests.conftest import Zoo
from tests.registry.checkpoint.test_adapter import train
from tests.test_docs import parse

NEXT = "  next: "


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def following(result: Result) -> str:
    """Return the line that follows, which is the last one and the only one of its kind, and parses."""
    lines = [line for line in result.stderr.splitlines() if NEXT in line]
    assert lines == result.stderr.splitlines()[-1:]
    line = lines[0].removeprefix(NEXT)
    command = line[line.index("reg ") :]
    parse(command)
    return command


@pytest.mark.check
def test_what_follows_a_command_parses_and_names_the_registry(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    math, text = zoo.test["math"], some_text(zoo, "math")
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
        (("evaluate", "moe", *text), "report moe --out report.html"),
        (("route", "moe", "a text"), "report moe --out report.html"),
        (("report", "moe", "--out", "report.html"), "push moe ORG/NAME"),
        (("reproduce", "moe"), "evaluate moe --data code=FILE --data math=FILE"),
        (("evaluate", "--experts", "code,math", "--methods", "average", *text),
         "compose --experts code,math --out moe-2/"),
        (("continual", "--schedule", "math", *text, "--trunk", "mean"),
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
        result = reg(*(str(word).replace("{digest}", digest) for word in words))
        assert following(result).startswith(f"reg --home {reg.home} {expected.replace('{digest}', digest)}"), words
        assert NEXT not in result.stdout


@pytest.mark.check
def test_two_experts_of_one_base_model_are_composed(tmp_path: Path, zoo: Zoo) -> None:
    reg = Reg(tmp_path / "home")
    assert following(reg("add-base", "base", zoo.base)).endswith(" add-expert NAME CKPT")
    words = ("train-expert", "one", "--base", "base", "--data", zoo.train["code"], "--tokens", 128, *TINY)
    assert following(reg(*words)).endswith((" add-expert NAME CKPT", " opt-out one@1"))
    other = ("train-expert", "two", "--base", "base", "--data", zoo.train["math"], "--tokens", 2048, *TINY)
    assert following(reg(*other)).endswith(" compose --experts one,two --out moe/")
    assert following(reg("show", "two")).endswith(" compose --experts one,two --out moe/")
    spoiled = ("--lr", "1000", "--warmup", "0")
    assert following(reg(*words[:1], "worse", *words[2:], *spoiled)).endswith(" opt-out worse@1")


def test_nothing_follows_where_only_the_result_is_asked_for(reg: Reg) -> None:
    for option in ("--quiet", "--json"):
        for words in (("list",), ("show", "math"), ("compose", *PAIR, "--plan"), ("log",)):
            assert reg(*words, option).stderr == reg(option, *words).stderr == ""


@pytest.mark.sqlite
def test_a_registry_of_the_environment_and_a_password_are_not_repeated(reg: Reg) -> None:
    result = CliRunner().invoke(main, ["show", "math"], env={"REG_HOME": str(reg.home)})
    assert following(result).startswith("reg compose --experts ")
    url = f"sqlite:///{reg.home / 'catalog.sqlite'}"
    assert f"--database {url} " in following(reg("--database", url, "list"))
    assert "hunter2" not in reg("--database", f"{url}?password=hunter2", "config").output
    assert _SECRET.sub(r"\1\2***", "postgresql://me:hunter2@host/db") == "postgresql://me:***@host/db"


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


def test_experts_that_routing_cannot_separate_are_not_suggested_together(reg: Reg, zoo: Zoo) -> None:
    added = reg("add-expert", "twin", zoo.experts["math"])
    assert "100% overlap of activations with math@1: a linear router can hardly separate their tokens" in added.stdout
    experts = shlex.split(following(added))[5].split(",")
    assert "twin" in experts
    assert len(experts) == 4
    assert "math" not in experts


@pytest.mark.check
def test_a_version_with_weights_of_an_earlier_one_says_what_differs(reg: Reg, zoo: Zoo) -> None:
    added = reg("add-expert", "math", zoo.experts["math"], "--license", "mit")
    assert "it has the weights of math@1, but differs in: license (none there, mit here)\n" in added.stderr
    changed = ("--data", zoo.train["law"], "--tokens", 64, "--seq-len", 32, "--keep-calibration")
    added = reg("add-expert", "math", zoo.experts["math"], *changed)
    differs = "settings of the statistics, license (mit there, none here), text of the statistics"
    assert f"it has the weights of math@2, but differs in: {differs}\n" in added.stderr


def test_of_counts_alone_no_trunk_is_solved(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """An adapter goes on as one beside other adapters of its base model, and a whole expert with averaged trunks."""
    counts = ("--data", zoo.train["law"], "--sites", "counts", "--tokens", 64, "--seq-len", 32)
    whole = following(reg("add-expert", "mine", zoo.experts["law"], *counts))
    assert whole.endswith(" compose --experts biomed,code,german,math,mine --trunk mean --out moe/")
    for name in ("first", "second", "third"):
        train(zoo.base, tmp_path / name, target_modules=["q_proj"])
    of_base = ("--base", "base", *counts)
    alone = following(reg("add-expert", "first", tmp_path / "first", *of_base))
    assert alone.endswith(" --trunk mean --out moe/")
    beside = following(reg("add-expert", "second", tmp_path / "second", *of_base))
    assert beside.endswith(" compose --experts first,second --to adapters --out moe/")
    full = following(reg("add-expert", "third", tmp_path / "third", *of_base[:4], "--tokens", 64, "--seq-len", 32))
    assert full.endswith(" compose --experts first,second,third --to adapters --out moe/")  # the others have counts
