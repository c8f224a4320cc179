"""Proves: reg train does what the library does, prints loss and digest, and reg show has its curve."""

import json
from pathlib import Path

from click.testing import CliRunner

from cli.main import main
from registry import Recipe, Registry
from tests.conftest import Zoo


def test_train_prints_loss_and_digest(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    home = ["--home", str(filled.home.path)]
    words = [*home, "train", str(tmp_path / "moe"), "--train", "all", "--data", str(zoo.train["code"])]
    words += ["--tokens", "192", "--batch-size", "2", "--seq-len", "32", "--device", "cpu", "--out"]
    result = CliRunner().invoke(main, [*words, str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["training"]["train"], document["training"]["steps"]) == ("all", 3)
    again = CliRunner().invoke(main, [*words, str(tmp_path / "again")])
    assert again.stdout.splitlines()[0].endswith(f"again  {document['digest']}")
    assert "held-out tokens" in again.stdout
    assert "step 3 of 3: loss" in again.stderr
    shown = CliRunner().invoke(main, [*home, "show", document["digest"]]).stdout.splitlines()
    assert next(line for line in shown if line.startswith("trained ")).split(maxsplit=1)[1] == "all, 3 steps"
    assert any(line.startswith("loss ") and line.endswith(" last") for line in shown)
    assert any(line.startswith("held-out loss ") for line in shown)
    for wrong, code in ((["--balance", "-1"], 1), (["--train", "heads"], 2)):
        result = CliRunner().invoke(main, [*words, str(tmp_path / "out"), *wrong])
        assert result.exit_code == code
        assert "rror: " in result.stderr
    result = CliRunner().invoke(main, [*words, str(tmp_path / "out")])
    assert (result.exit_code, "is not empty" in result.stderr) == (1, True)
