"""Proves: commands take members of several architectures, say what they cannot do with them, and withdraw them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from tests.conftest import Shared, Zoo
from tests.models import train_tokenizer
from tests.registry.composition.hetero.hetero_world import World, make_world


@pytest.fixture(scope="module")
def world(shared: Shared, zoo: Zoo) -> World:
    return shared.get("hetero", lambda root: make_world(root, zoo, train_tokenizer()))


@pytest.fixture
def home(world: World, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world.home, tmp_path / "home"))


def run(home: Path, *words: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.check
def test_what_is_composed_is_evaluated_routed_and_reported(home: Path, zoo: Zoo, tmp_path: Path) -> None:
    for to in ("hetero", "ensemble"):
        options = ("compose", "--experts", "code,law,math", "--to", to)
        planned = json.loads(run(home, *options, "--plan", "--json").output)
        out = tmp_path / to
        assert (
            planned["digest"][:12] in run(home, *options, "--out", out, "--save-recipe", tmp_path / f"{to}.yaml").output
        )
        again = run(home, "compose", "--recipe", tmp_path / f"{to}.yaml", "--plan", "--json").output
        assert json.loads(again)["digest"] == planned["digest"]
        words = ("--data", f"code={zoo.test['code']}", "--windows", "2", "--seq-len", "32", "--json")
        row = json.loads(run(home, "evaluate", out, *words).output)[-1]
        assert row["perplexity"]["code"] > 1
        assert row["active_parameters"] == planned["active_parameters"]
        assert row["parameters"] == planned["parameters"]
        assert "[a] code" in run(home, "route", out, "def return self").output
        run(home, "report", out, "--out", tmp_path / f"{to}.html")
        assert "ensemble" in (tmp_path / f"{to}.html").read_text()
        run(home, "reproduce", out)


@pytest.mark.check
def test_of_several_architectures_only_projectors_train(home: Path, zoo: Zoo, tmp_path: Path) -> None:
    run(home, "compose", "--experts", "code,math", "--to", "hetero", "--out", tmp_path / "out")
    shared = ("--data", zoo.train["code"], "--out", tmp_path / "trained")
    for command, *options in (("train", "--train", "all"), ("train-router",)):
        told = run(home, command, tmp_path / "out", *options, *shared, code=1).output
        assert "members of several architectures: its projectors and its router train" in told
    assert not (tmp_path / "trained").exists()
    settings = ("--tokens", "64", "--seq-len", "32", "--batch-size", "1", "--lr", "0.003", "--json")
    done = json.loads(run(home, "train", tmp_path / "out", "--train", "projectors", *shared, *settings).stdout)
    assert done["trained_tokens"] == 64
    run(home, "reproduce", tmp_path / "trained")


@pytest.mark.check(after=7)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--experts", "code,math"), "--to ensemble or --to hetero"),
        (("--experts", "code,math", "--to", "ensemble", "--routing", "task-vector"), "goes from weight to weight"),
        (("--experts", "code,math", "--lead", "math"), "--lead has no part in what --to moe makes"),
        (("--experts", "code,math", "--to", "hetero", "--trunk", "mean"), "--trunk has no part in what --to hetero"),
        (("--experts", "code,math", "--to", "hetero", "--weights", "code=2"), "--weights has no part"),
        (("--experts", "code,math", "--to", "hetero", "--lead", "law"), "the lead 'law' is not a member"),
        (("--experts", "math", "--to", "hetero"), "math is the only member"),
        (("--experts", "code,math", "--to", "hetero", "--lam", "auto"), "has no router in a layer"),
        (("--experts", "code,math", "--to", "hetero", "--base", "code"), "is an expert, not a base model"),
    ],
)
def test_what_cannot_be_is_said(home: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["--home", str(home), "compose", *words, "--out", str(tmp_path / "out")])
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_withdrawn_member_is_in_the_receipt(home: Path, tmp_path: Path) -> None:
    run(home, "compose", "--experts", "code,law,math", "--to", "hetero", "--lead", "math", "--out", tmp_path / "out")
    run(home, "opt-out", "math", "--purge", "--yes", "--receipt", tmp_path / "receipt.json")
    assert "receipt confirmed: math@1" in run(home, "receipt", "verify", tmp_path / "receipt.json").output
    made = json.loads(run(home, "compose", "--experts", "code,law", "--to", "hetero", "--plan", "--json").output)
    assert made["digest"] in (tmp_path / "receipt.json").read_text()  # of those who remain, with another lead
