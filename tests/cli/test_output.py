"""Proves: --quiet leaves the result alone, colours and bars are for terminals only, and a wrong word is answered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.output import bar, lines, progress
from registry import Registry
from tests.cli.conftest import PAIR, Reg, on_terminal
from tests.conftest import Zoo

RED = "\x1b[31m"


@pytest.mark.check
def test_quiet_prints_results_alone(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    moe, receipt = tmp_path / "moe", tmp_path / "receipt.json"
    digest = reg("compose", *PAIR, "--out", moe, "--quiet").stdout.strip()
    assert digest == filled.compositions()[0].digest
    quiet: dict[tuple[object, ...], str] = {
        ("list",): "\n".join(version.ref for version in filled.versions()),
        ("list", "--kind", "base"): "base@1",
        ("compose", *PAIR, "--plan"): digest,
        ("add-expert", "law", zoo.experts["law"]): "law@1",
        ("alias", "math", "good"): "math@1",
        ("alias", "math", "good", "--delete"): "",
        ("export", "math", "--out", tmp_path / "math"): str(tmp_path / "math"),
        ("reproduce", moe): "",
        ("verify",): "",
        ("gc",): "",
        ("opt-out", "math", "--purge", "--yes", "--receipt", receipt): "math@1",
        ("receipt", "verify", receipt): "",
    }
    for words, result in quiet.items():
        told = reg("-q", *words)
        assert (told.stdout.strip(), told.stderr) == (result, ""), words
    assert reg("--quiet", "compositions").stdout == reg("compositions").stdout  # a table is the result
    (moe / "config.json").write_text("{}")
    told = reg("receipt", "verify", receipt, "--folder", moe, "--quiet", code=1)
    assert all(line.startswith("problem: ") for line in told.stdout.splitlines())
    assert told.stderr == ""
    loud = reg("receipt", "verify", receipt, "--folder", moe, code=1)
    assert loud.stderr.startswith("next: ")
    assert reg("show", "mth", "--quiet", code=1).stderr.startswith("error: ")


def test_quiet_reports_no_progress(reg: Reg, zoo: Zoo) -> None:
    words = ("evaluate", zoo.base, "--data", f"x={zoo.test['law']}", "--windows", 1, "--seq-len", 32)
    assert "no normalised score" in reg(*words).stderr
    assert reg(*words, "--quiet").stderr == ""
    assert "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ


@pytest.mark.sqlite
def test_empty_registry_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reg = Reg(tmp_path / "home")
    monkeypatch.setattr("registry.home._default", lambda: reg.home)
    absent = CliRunner().invoke(main, ["list"])  # the default home may be absent
    header = ["version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"]
    assert (absent.exit_code, absent.stdout.split()) == (0, header)
    Registry(reg.home).close()
    assert reg("list").stderr == absent.stderr
    assert absent.stderr == (
        f"nothing is registered in {reg.home}: reg add-expert NAME CKPT registers an expert, --home or "
        "REG_HOME names another registry; reg list --all shows opted-out versions\n"
    )
    assert "of that kind or with those tags" in reg("list", "--tag", "a=b").stderr
    assert reg("list", "--quiet").stderr == ""


def test_wrong_word_is_answered_with_the_nearest(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    filled.alias("math", "stable")
    filled.compose(["math"], tmp_path / "moe")
    for line, code, answer in (
        ("compose --expert a", 2, "--experts"),
        ("compose --experts a --trunk regmeen --out x", 2, "did you mean 'regmean'?"),
        ("show math@stabel", 1, "did you mean 'stable'?"),
        ("evaluate --experts math --methods orakle --data a=b", 1, "did you mean 'oracle'?"),
        (f"push {tmp_path / 'moe'} org/moe --license apache2", 1, "did you mean 'apache-2.0'?"),
        ("schema lst", 1, "did you mean 'list'?"),
    ):
        assert answer in reg(*line.split(), code=code).stderr


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)], ids=str
)
def test_colours_are_for_terminals_that_want_them(tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    shown = on_terminal("--home", tmp_path / "absent", "list", **environment)
    assert "there is no registry at" in shown
    assert (RED in shown) is coloured
    assert RED not in Reg(tmp_path / "absent")("list", code=1).output  # which is no terminal


def test_bar_tells_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for term, shown in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", term)
        with bar("collecting", 100, "token") as advance:
            advance(50)
        told = capsys.readouterr().err
        assert ("token/s" in told and "collecting:" in told and "<" in told) is shown


def test_module_is_the_command() -> None:
    for name in ("cli", "cli.main"):
        done = subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("reg, version ")


def test_progress_for_a_program_is_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REG_PROGRESS", "lines")
    monkeypatch.setattr("cli.output._SECONDS_BETWEEN_LINES", 0.0)
    assert progress() is lines
    with lines("solving", 3, "layer") as advance:
        advance(2)
    with lines("a sentence", 0, "") as advance:
        advance(1)
    told = "progress: solving 0/3 layer\nprogress: solving 2/3 layer\nprogress: solving 2/3 layer\na sentence\n"
    assert capsys.readouterr() == ("", told)
    monkeypatch.setattr("cli.output._SECONDS_BETWEEN_LINES", 60.0)
    with lines("writing", 1000, "B") as advance:
        for _ in range(1000):
            advance(1)
    assert capsys.readouterr().err == "progress: writing 0/1000 B\nprogress: writing 1000/1000 B\n"
    monkeypatch.delenv("REG_PROGRESS")
    assert progress() is bar


def test_an_interrupted_job_prints_no_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "cli.job", "--home", str(tmp_path / "home"), "schema", "recipe"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdin is not None
        job.stdin.close()  # as when the server is gone
        job.wait(300)
        assert job.stderr is not None
        assert b"Traceback" not in job.stderr.read()
    assert job.returncode in (0, 1, 130)  # it may have been faster
