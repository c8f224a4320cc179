"""Proves: commands take members of several architectures, say what they cannot do with them, and withdraw them."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import PAIR, Reg, some_text
from tests.conftest import Shared, Zoo
from tests.models import train_tokenizer
from tests.registry.methods.hetero.hetero_world import World, make_world


@pytest.fixture(scope="module")
def world(shared: Shared, zoo: Zoo) -> World:
    return shared.get("hetero", lambda root: make_world(root, zoo, train_tokenizer()))


@pytest.fixture
def reg(world: World, tmp_path: Path) -> Reg:
    return Reg(Path(shutil.copytree(world.home, tmp_path / "home")))


@pytest.mark.check
def test_what_is_composed_is_evaluated_routed_and_reported(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    for to in ("hetero", "ensemble"):
        options = ("compose", "--experts", "code,law,math", "--to", to)
        out, recipe = tmp_path / to, tmp_path / f"{to}.yaml"
        planned = reg.json(*options, "--plan")
        assert planned["digest"][:12] in reg(*options, "--out", out, "--save-recipe", recipe).stdout
        assert reg.json("compose", "--recipe", recipe, "--plan")["digest"] == planned["digest"]
        row = reg.json("evaluate", out, *some_text(zoo, "code"))[-1]
        assert row["perplexity"]["code"] > 1
        assert row["active_parameters"] == planned["active_parameters"]
        assert row["parameters"] == planned["parameters"]
        assert "[a] code" in reg("route", out, "def return self").output
        reg("report", out, "--out", tmp_path / f"{to}.html")
        assert "ensemble" in (tmp_path / f"{to}.html").read_text()
        reg("reproduce", out)


@pytest.mark.check
def test_of_several_architectures_projectors_or_all_weights_train(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    reg("compose", *PAIR, "--to", "hetero", "--top-k", 2, "--routing-tokens", 8, "--out", tmp_path / "out")
    shared = ("--data", zoo.train["code"], "--out")
    for command, *options in (("train", "--train", "mlps"), ("train-router",)):
        told = reg(command, tmp_path / "out", *options, *shared, tmp_path / "none", code=1).output
        assert "members of several architectures: its projectors and its router train, or all weights" in told
    assert not (tmp_path / "none").exists()
    settings = ("--tokens", 64, "--seq-len", 32, "--batch-size", 1, "--lr", 0.003)
    for part in ("projectors", "all"):
        done = reg.json("train", tmp_path / "out", "--train", part, *shared, tmp_path / part, *settings)
        assert done["trained_tokens"] == 64
        reg("reproduce", tmp_path / part)
        reg("doctor", tmp_path / part, "--quick")


def test_what_cannot_be_is_said(reg: Reg, tmp_path: Path) -> None:
    for words, code, message in (
        ("--to moe", 1, "--to ensemble or --to hetero"),
        ("--to ensemble --routing task-vector", 1, "goes from weight to weight"),
        ("--lead math", 2, "--lead has no part in what --to moe makes"),
        ("--to hetero --trunk mean", 2, "--trunk has no part in what --to hetero"),
        ("--to hetero --lead law", 1, "the lead 'law' is not a member"),
        ("--to hetero --base code", 1, "is an expert, not a base model"),
    ):
        told = reg("compose", *PAIR, *words.split(), "--out", tmp_path / "out", code=code).output
        assert message in " ".join(told.split()), words
    assert not (tmp_path / "out").exists()


def test_a_withdrawn_member_is_in_the_receipt(reg: Reg, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    reg("compose", "--experts", "code,law,math", "--to", "hetero", "--lead", "math", "--out", tmp_path / "out")
    reg("opt-out", "math", "--purge", "--yes", "--receipt", receipt)
    assert "receipt confirmed: math@1" in reg("receipt", "verify", receipt).output
    made = reg.json("compose", "--experts", "code,law", "--to", "hetero", "--plan")
    assert made["digest"] in receipt.read_text()  # of those who remain, with another lead
