"""Proves: `reg push`, `reg push-expert` and `reg compose --push` say what they did, and `--json` has it all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Reg
from tests.conftest import files_of
from tests.writable_hub import WritableHub, writable_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


@pytest.mark.check
def test_pushes_are_told(reg: Reg, hub: WritableHub, tmp_path: Path) -> None:
    moe = tmp_path / "moe"
    compose = ("compose", "--experts", "code,math", "--trunk", "mean", "--out", moe)
    refused = reg(*compose, "--push", "org/moe", code=1).stderr
    assert "cannot be published under its members' licenses: no license was given for code, math" in refused
    assert "next: choose the license of the whole: --license ID" in refused
    assert not moe.exists()
    assert "--private, --license and --sign are for --push" in reg(*compose, "--private", code=2).stderr
    told = reg(*compose, "--push", "org/moe", "--license", "mit").stdout.splitlines()
    commit = hub.repositories["org/moe"].revisions["main"]
    assert told[-1].startswith(f"pushed to {hub.url}/org/moe  main, commit {commit[:12]}, ")
    assert told[-1].endswith("verified")
    assert hub.files("org/moe").keys() == files_of(moe).keys()
    again = reg("push", moe, "org/moe", "--license", "mit").stdout
    assert again.startswith(f"already up to date: {hub.url}/org/moe  main")
    found = reg.json("push", moe, "hf://org/other@v1", "--license", "mit", "--private")
    assert (found["repo_id"], found["revision"], found["added"]) == ("org/other", "v1", True)
    assert hub.repositories["org/other"].private
    lines = reg("push-expert", "math@1", "org/math", "--calibration").stderr.splitlines()
    assert lines[-1] == "  next: elsewhere: reg add-expert math hf://org/math"
    taken = reg("push", moe, "org/math", "--license", "mit", code=1).stderr
    assert "org/math is taken" in taken
    assert "next: choose another name" in taken
    assert "ORG/moe" in reg("push", moe, "moe", code=1).stderr
    gone = reg("opt-out", "math", "--yes").stdout
    assert f"    {hub.url}/org/moe  main  commit {commit[:12]}" in gone
    assert "hf_secret" not in gone + refused + taken
