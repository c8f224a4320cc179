"""Proves: reg train-router does what the library does, and tells loss and digest."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Recipe, Registry
from tests.conftest import Zoo


@pytest.mark.check
def test_train_router_tells_loss_and_digest(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    words = ["--home", str(filled.home.path), "train-router", str(tmp_path / "moe"), "--data", str(zoo.train["code"])]
    words += ["--steps", "3", "--batch-size", "2", "--seq-len", "32", "--warmup", "1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["training"]["warmup"] == 1
    assert len(document["loss"]) == 2
    assert CliRunner().invoke(main, words).exit_code == 1  # --out stands there
    result = CliRunner().invoke(main, [*words, "--force"])
    assert result.stdout.splitlines()[0].endswith(document["digest"][:12])
    assert "held-out tokens" in result.stdout
    assert "step 3 of 3: loss" in result.stderr
