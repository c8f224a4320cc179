"""Proves: every command that works with a folder warns of members that were opted out since, and names one version."""

from pathlib import Path

import pytest

from registry import Registry
from tests.cli.conftest import Reg, some_text
from tests.conftest import Zoo


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    """A composition of math and code, after which math was opted out."""
    filled.compose(["math", "code"], tmp_path / "moe")
    filled.opt_out("math")
    return tmp_path / "moe"


@pytest.mark.check
def test_commands_on_a_folder_warn_of_members_opted_out(
    reg: Reg, filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path
) -> None:
    out, data = tmp_path / "report.html", some_text(zoo, "code")
    at = str(filled.resolve("math", states=["withdrawn"]).withdrawn_at)[:10]
    warning = f"contains math@1, opted out {at}: compose the others without it, and delete the folder"
    digest = filled.compositions()[0].digest
    commands: dict[tuple[object, ...], str] = {
        ("evaluate", moe, *data): str(moe),
        ("route", moe, "the sum of two"): str(moe),
        ("report", moe, "--out", out): str(moe),
        ("report", digest[:12], "--out", out, "--force"): digest[:12],
        ("show", digest[:8]): digest[:12],
    }
    for words, label in commands.items():
        told = [line for line in reg(*words).stderr.splitlines() if line.startswith("warning:")]
        assert told == [f"warning: {label} {warning}"], words
    for words in (("reproduce", moe), ("push", moe, "org/moe")):  # what needs the member refuses, and names the same
        assert "holds math@1, which was opted out at" in reg(*words, code=1).stderr
    assert "warning" not in reg("--quiet", "route", moe, "the sum of two").stderr
    # Nothing is said of what the registry does not know.
    assert "warning" not in reg("evaluate", zoo.base, *data).stderr  # no composition
    assert "warning" not in Reg(tmp_path / "none")("route", moe, "the sum of two").stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.check
def test_one_digest_is_one_version_for_every_command(
    reg: Reg, filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path
) -> None:
    """A folder of math@1, whose content was registered again: both commands used to name another version."""
    first, both = tmp_path / "first.json", tmp_path / "both.json"
    filled.opt_out("math", receipt=first)
    assert filled.add_expert("math", zoo.experts["math"]).version.ref == "math@2"  # is welcome again
    assert "warning" not in reg("route", moe, "the sum of two").stderr
    problem = reg("receipt", "verify", first, "--folder", moe, code=1).stdout.splitlines()[0]
    assert problem.startswith(f"problem: {moe} holds math@2, the content of math@1 registered again: ")
    assert "code@1, math@2" in reg("reproduce", moe).stdout

    filled.opt_out("math", receipt=both)
    problem = reg("receipt", "verify", both, "--folder", moe, code=1).stdout.splitlines()[0]
    assert problem.startswith(f"problem: {moe} holds math@1: ")
    for words in (("push", moe, "org/moe"), ("reproduce", moe)):
        assert f"{moe} holds math@1, which was opted out at" in reg(*words, code=1).stderr
    assert f"{moe} contains math@1, opted out" in reg("route", moe, "the sum of two").stderr
