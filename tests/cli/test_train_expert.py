"""Proves: reg train-expert does what the library does, and prints loss and digest."""

import json
from pathlib import Path

from click.testing import CliRunner

from cli.main import main
from registry import Registry
from tests.conftest import Zoo


def test_train_expert_prints_loss_and_digest(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    words = ["--home", str(filled.home.path), "train-expert", "fresh", "--base", "base"]
    words += ["--data", str(zoo.train["code"]), "--tokens", "192", "--batch-size", "2", "--seq-len", "32"]
    words += ["--device", "cpu", "--tag", "domain=code"]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["version"]["ref"] == "fresh@1"
    assert document["version"]["tags"] == {"domain": "code"}
    assert document["training"]["training"]["steps"] == 3
    assert len(document["loss"]) == 2
    result = CliRunner().invoke(main, words)
    assert result.stdout.splitlines()[0].endswith(document["version"]["digest"])
    assert "already registered as fresh@1" in result.stdout
    assert "held-out tokens" in result.stdout
    assert "step 3 of 3: loss" in result.stderr
    result = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out"), "--mlp", "lora:2"])
    assert result.exit_code == 0, result.output
    assert f"into {tmp_path / 'out'}" in result.stdout
    for wrong in (["--mlp", "lora:x"], ["--device", "cuda:7"]):
        result = CliRunner().invoke(main, [*words, *wrong])
        assert result.exit_code == 1
        assert "error: " in result.stderr
        assert "  next: " in result.stderr
