"""Proves: every command that works with a folder warns of members that were opted out since, and names one version."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from tests.conftest import Zoo


def run(home: Path, *words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    """A composition of math and code, after which math was opted out."""
    filled.compose(["math", "code"], tmp_path / "moe")
    filled.opt_out("math")
    return tmp_path / "moe"


@pytest.mark.check
def test_commands_on_a_folder_warn_of_members_opted_out(filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path) -> None:
    home, out = filled.home.path, tmp_path / "report.html"
    at = str(filled.resolve("math", states=["withdrawn"]).withdrawn_at)[:10]
    warning = f"contains math@1, opted out {at}: compose the others without it, and delete the folder"
    digest = filled.compositions()[0].digest
    data = ("--data", f"code={zoo.test['code']}", "--windows", 1, "--seq-len", 32)
    commands: dict[tuple[object, ...], str] = {
        ("evaluate", moe, *data): str(moe),
        ("route", moe, "the sum of two"): str(moe),
        ("report", moe, "--out", out): str(moe),
        ("report", digest[:12], "--out", out, "--force"): digest[:12],
        ("show", digest[:8]): digest[:12],
    }
    for words, label in commands.items():
        assert [line for line in run(home, *words).stderr.splitlines() if line.startswith("warning:")] == [
            f"warning: {label} {warning}"
        ], words
    for words in (("reproduce", moe), ("push", moe, "org/moe")):  # what needs the member refuses, and names the same
        assert "holds math@1, which was opted out at" in run(home, *words, code=1).stderr
    assert "warning" not in run(home, "--quiet", "route", moe, "the sum of two").stderr


@pytest.mark.check
def test_nothing_is_said_of_what_the_registry_does_not_know(
    filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path
) -> None:
    data = ("--data", f"code={zoo.test['code']}", "--windows", 1, "--seq-len", 32)
    assert "warning" not in run(filled.home.path, "evaluate", zoo.base, *data).stderr  # no composition
    assert "warning" not in run(tmp_path / "none", "route", moe, "the sum of two").stderr
    assert not (tmp_path / "none").exists()
    filled.add_expert("math", zoo.experts["math"])  # the same content is welcome again
    assert "warning" not in run(filled.home.path, "route", moe, "the sum of two").stderr


@pytest.mark.check
def test_one_digest_is_one_version_for_receipt_and_push(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """A folder of math@1, whose content was registered again: both commands used to name another version."""
    home, moe, receipt = filled.home.path, tmp_path / "moe", tmp_path / "receipt.json"
    filled.compose(["math", "code"], moe)
    filled.opt_out("math")
    assert filled.add_expert("math", zoo.experts["math"]).version.ref == "math@2"
    filled.opt_out("math", receipt=receipt)  # of both
    problem = run(home, "receipt", "verify", receipt, "--folder", moe, code=1).stdout.splitlines()[0]
    assert problem.startswith(f"problem: {moe} holds math@1: ")
    for words in (("push", moe, "org/moe"), ("reproduce", moe)):
        assert f"{moe} holds math@1, which was opted out at" in run(home, *words, code=1).stderr
    assert f"{moe} contains math@1, opted out" in run(home, "route", moe, "the sum of two").stderr


@pytest.mark.check
def test_content_registered_again_is_named_by_its_active_version(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    home, moe, receipt = filled.home.path, tmp_path / "moe", tmp_path / "receipt.json"
    filled.compose(["math", "code"], moe)
    filled.opt_out("math", receipt=receipt)
    filled.add_expert("math", zoo.experts["math"])
    problem = run(home, "receipt", "verify", receipt, "--folder", moe, code=1).stdout.splitlines()[0]
    assert problem.startswith(f"problem: {moe} holds math@2, the content of math@1 registered again: ")
    assert "code@1, math@2" in run(home, "reproduce", moe).stdout
