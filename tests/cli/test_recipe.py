"""Proves: the commands that take a recipe read every option of it, and refuse those that have no part in it."""

import re
from pathlib import Path

import pytest

from registry import Recipe, Registry
from registry.io.model_folder import MARKER
from tests.cli.conftest import PAIR, Reg
from tests.conftest import Zoo, files_of
from tests.models import sentences, write_jsonl

NO_PART_IN_AN_ENSEMBLE = (
    *("--router random", "--lam 1", "--no-normalize", "--bias code=1", "--seed 1"),
    *("--refine 1", "--balance tokens", "--host mixtral", "--remote-code"),
)
DENSE = "--to dense --trunk task-arithmetic"
USAGE = (
    ("--routing posterior", "--routing has no part in what --to moe makes. It goes with --to ensemble."),
    (
        "--to dense --routing-tokens 4",
        "--routing-tokens has no part in what --to dense makes. It goes with --to ensemble or hetero.",
    ),
    (
        "--to ensemble --alpha 0.5",
        "--alpha has no part in an ensemble whose members keep their own trunks. It goes with --trunk regmean.",
    ),
    ("--to ensemble --trunk mean --scale 2", "--scale has no part in --trunk mean."),
    ("--host mixtral --remote-code", "--host and --remote-code exclude one another."),
    ("--lam best", "'best' is not a valid float"),
    ("--bias code=much", "the bias of code is 'much', not a number"),
    ("--weights code=much", "the weight of code is 'much', not a number"),
    ("--weights code", "NAME=WEIGHT"),
    ("--like FILE", "--like needs --to dense, and makes the weights itself."),
    ("--like FILE --to ensemble", "--like needs --to dense, and makes the weights itself."),
    ("--like FILE --to dense --weights code=2", "--like needs --to dense, and makes the weights"),
    ("--refine -1", "--refine: "),
    ("--seed 1", "--seed has no part in --router context. It goes with --router random."),
    (
        "--router random --lam 1",
        "--lam has no part in --router random. It goes with --router ridge or domain-embedding.",
    ),
    ("--bias code=1", "--bias has no part in --router context. It goes with --router domain-embedding or anchored."),
    ("--router ridge --vocabulary shared", "--vocabulary has no part in --router ridge."),
    (
        "--to dense --trunk base",
        "a dense model with the trunk of the base is the base model itself: choose another --trunk.",
    ),
    ("--public base --trunk base", "--public has no part in --router context. It goes with --router anchored."),
    ("--public base --to dense", "--public has no part in what --to dense makes. It goes with --to moe."),
    ("--coefficients code=1", "--coefficients has no part in --trunk regmean."),
    (f"{DENSE} --coefficients code=x", "the coefficient of code is 'x', not a number"),
    ("--fit-steps 3", "--fit-steps is for --fit."),
    ("--fit FILE", "--fit needs --to dense --trunk task-arithmetic."),
    ("--fit FILE --trunk task-arithmetic", "--fit needs --to dense --trunk task-arithmetic."),
    ("--fit FILE --to ensemble", "--fit needs --to dense --trunk task-arithmetic."),
    (f"--fit FILE {DENSE} --like FILE", "--fit and --like exclude one another"),
    (f"--fit FILE {DENSE} --coefficients code=1", "--fit makes the coefficients itself"),
    (f"--fit FILE {DENSE} --fit-steps 0", "--fit-steps: "),
    ("--from-base 4", "--from-base and --experts exclude one another"),
)
"""Options of compose, and what is wrong with them."""


def test_usage_errors_come_before_any_registry_is_looked_for(zoo: Zoo, tmp_path: Path) -> None:
    reg, out = Reg(tmp_path / "home"), tmp_path / "out"
    for words in NO_PART_IN_AN_ENSEMBLE:
        told = reg("compose", *PAIR, "--to", "ensemble", "--out", out, *words.split(), code=2).stderr
        option = words.split()[0].replace("--no-", "--")
        assert f"error: {option} has no part in what --to ensemble makes." in told
    for words, message in USAGE:
        given = [zoo.test["code"] if word == "FILE" else word for word in words.split()]
        assert message in reg("compose", *PAIR, "--out", out, *given, code=2).stderr, words
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_the_members_is_told(reg: Reg, tmp_path: Path) -> None:
    for words, message, hint in (
        (",", "at least one expert", "--experts code,math"),
        ("math --top-k 2", "top-k is 2, it must be 1, as there is one member", "give --top-k 1 or less, or name more"),
        ("math --weights law=2", "there is a weight for law, which is not a member", "members are: math"),
    ):
        result = reg("compose", "--out", tmp_path / "out", "--experts", *words.split(), code=1)
        assert result.stdout == ""
        assert message in result.stderr
        assert hint in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.check
def test_options_reach_the_recipe(reg: Reg, filled: Registry) -> None:
    cases: tuple[tuple[tuple[object, ...], Recipe], ...] = (
        (
            ("--trunk", "ties", "--density", 0.5, "--scale", 2),
            Recipe(trunk="ties", trunk_options={"density": 0.5, "scale": 2.0}),
        ),
        (("--alpha", 0.5), Recipe(trunk_options={"alpha": 0.5})),
        (("--context-window", 0, "--vocabulary", "shared"), Recipe(context_window=0.0, vocabulary="shared")),
        (("--router", "ridge", "--no-normalize"), Recipe(router="ridge", normalize=False)),
        (("--router", "random", "--seed", 7), Recipe(router="random", seed=7)),
        (("--router", "domain-embedding", "--bias", "code=-0.5,math=1"),
         Recipe(router="domain-embedding", bias={"code": -0.5, "math": 1.0})),
        (("--router", "ridge", "--lam", 0.5, "--balance", "tokens"),
         Recipe(router="ridge", lam=0.5, balance="tokens")),
        (("--router", "ridge", "--refine", 2), Recipe(router="ridge", refine=2)),
        (("--to", "dense", "--weights", "code=3"), Recipe(to="dense", weights={"code": 3.0})),
        (("--dtype", "bfloat16"), Recipe(dtype="bfloat16")),
        (("--top-k", 2, "--temperature", 0.5), Recipe(top_k=2, temperature=0.5)),
    )  # fmt: skip
    plain = filled.plan(("code", "math")).document["recipe"]
    for words, recipe in cases:
        expected = filled.plan(("code", "math"), recipe).document["recipe"]
        assert reg.json("compose", *PAIR, "--plan", *words)["recipe"] == expected != plain, words


def test_members_of_an_ensemble_share_a_trunk(reg: Reg, filled: Registry) -> None:
    options = ("--to", "ensemble", "--trunk", "ties", "--density", "0.5", "--weights", "code=2")
    recipe = Recipe(to="ensemble", trunk="ties", trunk_options={"density": 0.5}, weights={"code": 2.0})
    plan = filled.plan(["code", "math"], recipe)
    document = reg.json("compose", *PAIR, *options, "--plan")
    assert (document["digest"], document["parameters"]) == (plan.digest, plan.parameters)
    assert document["bytes"] < filled.plan(["code", "math"], Recipe(to="ensemble")).nbytes
    shown = reg("compose", *PAIR, *options, "--plan").stdout
    assert re.search(r"trunk +ties\n", shown)
    assert re.search(r"density +0.5\n", shown)


@pytest.mark.check
def test_dense_model_for_documents(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", sentences("biomed", 8, seed=1))
    words = ("compose", "--experts", "code,math@1,biomed", "--to", "dense", "--trunk", "mean", "--like", text)
    shares = filled.likeness(("code", "math", "biomed"), [text])
    found = reg.json(*words, "--plan")
    assert found["recipe"]["weights"] == {name: shares[name] for name in sorted(shares)}
    assert sum(shares.values()) == pytest.approx(1)
    assert not (tmp_path / "out").exists()
    reg(*words, "--out", tmp_path / "out", "--base", "base")
    filled.compose(sorted(shares), tmp_path / "same", Recipe(to="dense", trunk="mean", weights=shares))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "same")
    assert "--like" not in (tmp_path / "out" / MARKER).read_text()
    empty = write_jsonl(tmp_path / "empty.jsonl", [""])
    told = reg(*words[:-1], empty, "--out", tmp_path / "none", code=1).stderr
    assert told.startswith("error: ")
    assert "holds no text to be like" in told
    assert "next: give --like a file of documents" in told


@pytest.mark.check
def test_recipe_is_shown_as_people_write_it(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    plan = reg("compose", *PAIR, "--router", "domain-embedding", "--bias", "code=1", "--normalize", "--plan").stdout
    shown = dict(line.split(maxsplit=1) for line in plan.splitlines() if line.startswith(("bias", "normalize")))
    assert {key: value.strip() for key, value in shown.items()} == {"bias": "code=1, math=0", "normalize": "yes"}
    reg("compose", *PAIR, "--router", "ridge", "--refine", 1, "--out", tmp_path / "out")
    assert "ridge, refine 1" in reg("compositions").stdout
    told = reg("compose", *PAIR, "--to", "dense", "--like", zoo.test["code"], "--plan").stdout
    weights = filled.likeness(("code", "math"), [zoo.test["code"]])
    assert told.startswith(f"weights by --like: {', '.join(f'{name}={weight:g}' for name, weight in weights.items())}")
