"""Proves: reg train-expert does what the library does, and prints loss and digest."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from tests.conftest import Zoo, files_of


@pytest.mark.check
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
    assert result.stdout.splitlines()[0].endswith(document["version"]["digest"][:12])
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


@pytest.mark.check
def test_tokens_that_were_trained_on_are_printed_and_shown(filled: Registry, zoo: Zoo) -> None:
    home = ["--home", str(filled.home.path)]
    words = [*home, "train-expert", "fresh", "--base", "base", "--data", str(zoo.train["code"]), "--tokens", "100"]
    words += ["--batch-size", "2", "--seq-len", "32", "--accumulate", "2", "--device", "cpu"]
    result = CliRunner().invoke(main, words)
    assert result.stdout.startswith("trained fresh in 1 step on 128 tokens, 100 asked for; registered fresh@1 ")
    document = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert document["trained_tokens"] == 128
    assert document["training"]["training"]["tokens"] == 100  # as it was asked for, which the digest covers
    shown = CliRunner().invoke(main, [*home, "show", "fresh"]).stdout
    assert "1 step, 128 tokens" in shown
    assert json.loads(CliRunner().invoke(main, [*home, "show", "fresh", "--json"]).stdout)["training"]["tokens"] == 128


def test_a_training_that_spoiled_an_expert_says_how_to_withdraw_it(filled: Registry, zoo: Zoo) -> None:
    words = ["--home", str(filled.home.path), "train-expert", "worse", "--base", "base", "--data"]
    words += [str(zoo.train["code"]), "--tokens", "128", "--batch-size", "2", "--seq-len", "32", "--device", "cpu"]
    result = CliRunner().invoke(main, [*words, "--lr", "1000", "--warmup", "0"])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == f"  next: reg --home {filled.home.path} opt-out worse@1"


@pytest.mark.check
def test_a_coordinated_expert_is_composed_with_the_public_one(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    def run(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, words)])
        assert result.exit_code == code, result.output
        return result.output

    law, public = zoo.train["law"], zoo.train["german"]
    words = ("train-expert", "beside", "--base", "base", "--data", law, "--tokens", 192, "--batch-size", 2)
    more = ("--seq-len", 32, "--device", "cpu", "--coordinate", "--router-bias", "--public-data", public)
    run(*words, *more)
    assert "router rows" in run("show", "beside")
    assert "router rows" not in run("show", "law")
    anchored = ("--trunk", "base", "--router", "anchored")
    run("compose", "--experts", "beside,base", *anchored, "--out", tmp_path / "named")
    run("compose", "--experts", "beside", "--public", "base", *anchored, "--out", tmp_path / "public")
    assert files_of(tmp_path / "public") == files_of(tmp_path / "named")
    run("compose", "--recipe", tmp_path / "named" / "composition.json", "--out", tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "named")
    both = ("compose", "--experts", "beside", "--public", "base", *anchored, "--plan", "--bias")
    plan = run(*both, "beside=-1.5")
    assert "routers have a bias" in plan
    assert "base=0, beside=-1.5" in plan
    assert json.loads(run(*both, "beside=-1.5", "--json"))["recipe"]["bias"] == {"base": 0.0, "beside": -1.5}
    told = run(*both, "beside=1", code=1)
    assert "the bias of beside is 1; with router method 'anchored' a bias makes an expert stand back" in told
    assert "next: give --bias beside=-1" in told
    assert "next: name the base model among the experts: --public" in run(
        "compose", "--experts", "beside", *anchored, "--bias", "beside=-1", "--plan", code=1
    )
    general = "no expert stands for general text; to add the base model: --public base"
    alone = ("compose", "--experts", "beside", *anchored)
    assert f"{general}\n" in run(*alone, "--plan")
    assert run(*alone, "--out", tmp_path / "alone").count(general) == 1
    assert f"{general}@1\n" in run("compose", "--recipe", tmp_path / "alone" / "composition.json", "--plan")
    assert "general text" not in run(*alone, "--public", "base", "--plan")
    assert "general text" not in run(*alone, "--plan", "--quiet")
    assert "general text" not in run("compose", "--experts", "code", "--plan")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--router", "ridge"), "no part in --router ridge. It goes with --router anchored."),
        (("--trunk", "base"), "no part in --router context. It goes with --router anchored."),
        (("--to", "ensemble"), "no part in what --to ensemble makes. It goes with --to moe."),
        (("--to", "dense"), "no part in what --to dense makes. It goes with --to moe."),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_a_public_expert_without_anchored_routers_is_a_usage_error(
    filled: Registry, words: tuple[str, ...], reason: str
) -> None:
    shared = ["--home", str(filled.home.path), "compose", "--experts", "code", *words, "--plan"]
    result = CliRunner().invoke(main, [*shared, "--public", "base"])
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, f"error: --public has {reason}")
    bias = CliRunner().invoke(main, [*shared, "--bias", "code=-1"])  # an option of recipes
    expected = reason.replace("--router anchored", "--router domain-embedding or anchored")
    assert (bias.exit_code, bias.stderr.splitlines()[0]) == (2, f"error: --bias has {expected}")
