"""Proves: reg train does what the library does, prints loss and digest, and reg show has its curve.

The commands that train have their common options in one order, and print the tokens that they trained on.
"""

import json
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.commands.train import train
from cli.commands.train_expert import train_expert
from cli.commands.train_router import train_router
from cli.main import main
from registry import Recipe, Registry
from tests.conftest import Zoo


@pytest.mark.check
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
    assert again.stdout.splitlines()[0].endswith(f"again  {document['digest'][:12]}")
    assert "held-out tokens" in again.stdout
    assert "step 3 of 3: loss" in again.stderr
    shown = CliRunner().invoke(main, [*home, "show", document["digest"]]).stdout.splitlines()
    assert (
        next(line for line in shown if line.startswith("trained ")).split(maxsplit=1)[1] == "all, 3 steps, 192 tokens"
    )
    assert any(line.startswith("loss ") and line.endswith(" last") for line in shown)
    assert any(line.startswith("held-out loss ") for line in shown)
    for wrong, code in ((["--balance", "-1"], 1), (["--train", "heads"], 2)):
        result = CliRunner().invoke(main, [*words, str(tmp_path / "out"), *wrong])
        assert result.exit_code == code
        assert "rror: " in result.stderr
    result = CliRunner().invoke(main, [*words, str(tmp_path / "out")])
    assert (result.exit_code, "is not empty" in result.stderr) == (1, True)


def test_common_options_are_the_same_in_one_order() -> None:
    commands = [
        {option.name: option.to_info_dict() for option in each.params if option.name not in ("data", "out")}
        for each in (train, train_router, train_expert)
    ]
    for one, other in permutations(commands, 2):
        assert [name for name in one if name in other] == [name for name in other if name in one]
    for name in ("seq_len", "batch_size", "seed"):
        first, *others = (options[name] for options in commands)
        assert others == [first, first]


@pytest.mark.check
def test_tokens_that_were_trained_on_are_printed_beside_those_asked_for(
    filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    home = ["--home", str(filled.home.path)]
    amount = ["--data", str(zoo.train["code"]), "--batch-size", "2", "--seq-len", "32", "--device", "cpu"]
    words = [*home, "train", str(tmp_path / "moe"), *amount, "--accumulate", "2", "--tokens", "200", "--train"]
    for part in ("mlps", "routers"):
        result = CliRunner().invoke(main, [*words, part, "--out", str(tmp_path / part)])
        assert result.stdout.splitlines()[1] == "  2 steps on 256 tokens, 200 asked for"
    result = CliRunner().invoke(main, [*words, "mlps", "--out", str(tmp_path / "json"), "--json"])
    assert json.loads(result.stdout)["trained_tokens"] == 256
    whole = [*home, "train", str(tmp_path / "moe"), *amount, "--tokens", "128", "--train", "mlps"]
    result = CliRunner().invoke(main, [*whole, "--out", str(tmp_path / "whole")])
    assert result.stdout.splitlines()[1] == "  2 steps on 128 tokens"
    words = [*home, "train-router", str(tmp_path / "moe"), *amount, "--steps", "3"]
    result = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "router")])
    assert result.stdout.splitlines()[1] == "  3 steps on 192 tokens"
    result = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "again"), "--json"])
    assert json.loads(result.stdout)["trained_tokens"] == 192
