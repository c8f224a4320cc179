"""Proves: the commands that train do what the library does, print loss, digest and tokens, and share their options."""

from itertools import permutations
from pathlib import Path

import pytest

from cli.commands.train_experts import train_expert
from cli.commands.train_mixtures import train, train_router
from registry import Recipe, Registry
from tests.cli.conftest import TINY, Reg
from tests.conftest import Zoo, files_of


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    return tmp_path / "moe"


@pytest.mark.check
def test_train_prints_loss_digest_and_tokens(reg: Reg, zoo: Zoo, moe: Path, tmp_path: Path) -> None:
    words = ("train", moe, "--data", zoo.train["code"], "--accumulate", 2, "--tokens", 200, *TINY, "--train")
    document = reg.json(*words, "all", "--out", tmp_path / "out")
    assert (document["training"]["train"], document["training"]["steps"]) == ("all", 2)
    assert document["trained_tokens"] == 256
    again = reg(*words, "all", "--out", tmp_path / "again")
    assert again.stdout.splitlines()[0].endswith(f"again  {document['digest'][:12]}")
    assert again.stdout.splitlines()[1] == "  2 steps on 256 tokens, 200 asked for"
    assert "held-out tokens" in again.stdout
    assert "step 2 of 2: loss" in again.stderr
    shown = reg("show", document["digest"]).stdout.splitlines()
    trained = next(line for line in shown if line.startswith("trained "))
    assert trained.split(maxsplit=1)[1] == "all, 2 steps, 256 tokens"
    assert any(line.startswith("loss ") and line.endswith(" last") for line in shown)
    assert any(line.startswith("held-out loss ") for line in shown)
    exactly = reg(*words, "routers", "--tokens", 128, "--out", tmp_path / "exactly").stdout
    assert exactly.splitlines()[1] == "  1 step on 128 tokens"
    for wrong, code in ((("all", "--balance", "-1"), 1), (("heads",), 2)):
        assert "error: " in reg(*words, *wrong, "--out", tmp_path / "new", code=code).stderr
    assert "is not empty" in reg(*words, "all", "--out", tmp_path / "out", code=1).stderr


@pytest.mark.check
def test_train_router_prints_loss_digest_and_tokens(reg: Reg, zoo: Zoo, moe: Path, tmp_path: Path) -> None:
    words = ("train-router", moe, "--data", zoo.train["code"], "--steps", 3, "--warmup", 1, "--out", tmp_path / "out")
    document = reg.json(*words, *TINY)
    assert (document["training"]["warmup"], document["trained_tokens"], len(document["loss"])) == (1, 192, 2)
    reg(*words, *TINY, code=1)  # --out stands there
    result = reg(*words, *TINY, "--force")
    assert result.stdout.splitlines()[0].endswith(document["digest"][:12])
    assert result.stdout.splitlines()[1] == "  3 steps on 192 tokens"
    assert "held-out tokens" in result.stdout
    assert "step 3 of 3: loss" in result.stderr


@pytest.mark.check
def test_train_expert_prints_loss_digest_and_tokens(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    amount = ("--tokens", 100, "--accumulate", 2, *TINY)
    words = ("train-expert", "fresh", "--base", "base", "--data", zoo.train["code"], "--tag", "domain=code", *amount)
    result = reg(*words)
    assert result.stdout.startswith("trained fresh in 1 step on 128 tokens, 100 asked for; registered fresh@1 ")
    assert "held-out tokens" in result.stdout
    assert "step 1 of 1: loss" in result.stderr
    document = reg.json(*words)
    assert (document["version"]["ref"], document["version"]["tags"]) == ("fresh@1", {"domain": "code"})
    assert (document["trained_tokens"], document["training"]["training"]["steps"], len(document["loss"])) == (128, 1, 2)
    assert document["training"]["training"]["tokens"] == 100  # as it was asked for, which the digest covers
    assert result.stdout.splitlines()[0].endswith(document["version"]["digest"][:12])
    assert "1 step, 128 tokens" in reg("show", "fresh").stdout
    assert reg.json("show", "fresh")["training"]["tokens"] == 128
    written = reg(*words, "--out", tmp_path / "out", "--lora", 2)
    assert f"into {tmp_path / 'out'}" in written.stdout
    for wrong in (("--lora", 2, "--trunk", "free"), ("--device", "cuda:7")):
        told = reg(*words, *wrong, code=1).stderr
        assert "error: " in told
        assert "  next: " in told
    assert "already registered as fresh@1" in reg(*words).stdout


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
def test_a_coordinated_expert_is_composed_with_the_public_one(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    words = ("train-expert", "beside", "--base", "base", "--data", zoo.train["law"], "--tokens", 192, *TINY)
    reg(*words, "--coordinate", "--router-bias", "--public-data", zoo.train["german"])
    assert "router rows" in reg("show", "beside").stdout
    assert "router rows" not in reg("show", "law").stdout
    anchored = ("--trunk", "base", "--router", "anchored")
    alone = ("compose", "--experts", "beside", *anchored)
    reg("compose", "--experts", "beside,base", *anchored, "--out", tmp_path / "named")
    reg(*alone, "--public", "base", "--out", tmp_path / "public")
    assert files_of(tmp_path / "public") == files_of(tmp_path / "named")
    reg("compose", "--recipe", tmp_path / "named" / "composition.json", "--out", tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "named")
    both = (*alone, "--public", "base", "--plan", "--bias")
    plan = reg(*both, "beside=-1.5").stdout
    assert "routers have a bias" in plan
    assert "base=0, beside=-1.5" in plan
    assert reg.json(*both, "beside=-1.5")["recipe"]["bias"] == {"base": 0.0, "beside": -1.5}
    told = reg(*both, "beside=1", code=1).stderr
    assert "the bias of beside is 1; with router method 'anchored' a bias makes an expert stand back" in told
    assert "next: give --bias beside=-1" in told
    told = reg(*alone, "--bias", "beside=-1", "--plan", code=1).stderr
    assert "next: name the base model among the experts: --public" in told
    general = "no expert stands for general text; to add the base model: --public base"
    assert f"{general}\n" in reg(*alone, "--plan").output
    assert reg(*alone, "--out", tmp_path / "alone").output.count(general) == 1
    assert f"{general}@1\n" in reg("compose", "--recipe", tmp_path / "alone" / "composition.json", "--plan").output
    assert "general text" not in reg(*alone, "--public", "base", "--plan").output
    assert "general text" not in reg(*alone, "--plan", "--quiet").output
    assert "general text" not in reg("compose", "--experts", "code", "--plan").output
