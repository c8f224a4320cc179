"""Proves: the commands that take a recipe read every option of it, and refuse those that have no part in it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from cli.main import main
from registry import EnsembleRecipe, Recipe, Registry
from registry.io.model_folder import MARKER
from tests.conftest import Zoo, files_of
from tests.models import sentences, write_jsonl

Run = Callable[..., Result]
PAIR = ("--experts", "code,math")


@pytest.fixture
def run(filled: Registry) -> Run:
    """Return a function that runs `reg --home … ARGS` and expects success, unless told otherwise."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return invoke


def refused(home: Path, *arguments: object) -> Result:
    """Run a command that is a usage error, which is told before any registry is looked for."""
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert not home.exists()
    return result


@pytest.mark.parametrize(
    "words",
    [
        ("--router", "random"),
        ("--lam", "auto"),
        ("--no-normalize",),
        ("--bias", "code=1"),
        ("--seed", "1"),
        ("--token-weight", "advantage"),
        ("--refine", "1"),
        ("--refine-mlp",),
        ("--refine-trunk",),
        ("--balance", "tokens"),
        ("--host", "mixtral"),
        ("--remote-code",),
    ],
)
def test_ensemble_has_no_part_for_trunks_and_routers(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = refused(tmp_path / "home", "compose", *PAIR, "--to", "ensemble", "--out", tmp_path / "out", *words)
    assert f"error: {words[0].replace('--no-', '--')} has no part in what --to ensemble makes." in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--routing", "posterior"), "--routing has no part in what --to moe makes. It goes with --to ensemble."),
        (
            ("--to", "dense", "--routing-tokens", "4"),
            "--routing-tokens has no part in what --to dense makes. It goes with --to ensemble or hetero.",
        ),
        (
            ("--to", "ensemble", "--alpha", "0.5"),
            "--alpha has no part in an ensemble whose members keep their own trunks. It goes with --trunk regmean.",
        ),
        (("--to", "ensemble", "--trunk", "mean", "--scale", "2"), "--scale has no part in --trunk mean."),
        (("--host", "mixtral", "--remote-code"), "--host and --remote-code exclude one another."),
        (("--lam", "best"), "'best' is neither a number nor auto"),
        (("--bias", "code=much"), "the bias of code is 'much', not a number"),
        (("--weights", "code=much"), "the weight of code is 'much', not a number"),
        (("--weights", "code"), "NAME=WEIGHT"),
        (("--like", "FILE"), "--like needs --to dense, and makes the weights itself."),
        (("--like", "FILE", "--to", "ensemble"), "--like needs --to dense, and makes the weights itself."),
        (("--like", "FILE", "--to", "dense", "--weights", "code=2"), "--like needs --to dense, and makes the weights"),
        (("--refine", "-1"), "--refine: "),
        (("--seed", "1"), "--seed has no part in --router context. It goes with --router random."),
        (
            ("--router", "random", "--lam", "1"),
            "--lam has no part in --router random. It goes with --router ridge or domain-embedding.",
        ),
        (("--bias", "code=1"), "--bias has no part in --router context."),
        (("--router", "ridge", "--vocabulary", "shared"), "--vocabulary has no part in --router ridge."),
        (("--to", "dense", "--trunk", "base"), "--to dense --trunk base is the base model itself: choose another"),
    ],
)
def test_usage_errors(zoo: Zoo, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    given = [zoo.test["code"] if word == "FILE" else word for word in words]
    assert message in refused(tmp_path / "home", "compose", *PAIR, "--out", tmp_path / "out", *given).stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        (("--trunk", "ties", "--density", 0.5, "--scale", 2), Recipe("ties", {"density": 0.5, "scale": 2.0})),
        (("--alpha", 0.5), Recipe(trunk_options={"alpha": 0.5})),
        (("--context-window", 0, "--vocabulary", "shared"), Recipe(context_window=0.0, vocabulary="shared")),
        (("--router", "ridge", "--no-normalize"), Recipe(router="ridge", normalize=False)),
        (("--refine-mlp",), Recipe(refine_mlp=True)),
        (("--router", "random", "--seed", 7), Recipe(router="random", seed=7)),
        (
            ("--router", "domain-embedding", "--bias", "code=-0.5,math=1"),
            Recipe(router="domain-embedding", bias={"code": -0.5, "math": 1.0}),
        ),
        (
            ("--router", "ridge", "--lam", "auto", "--balance", "tokens"),
            Recipe(router="ridge", lam="auto", balance="tokens"),
        ),
        (
            ("--router", "ridge", "--token-weight", "advantage", "--refine", 2, "--refine-mlp"),
            Recipe(router="ridge", token_weight="advantage", refine=2, refine_mlp=True),
        ),
        (("--to", "dense", "--weights", "code=3"), Recipe(to="dense", weights={"code": 3.0})),
        (("--dtype", "bfloat16"), Recipe(dtype="bfloat16")),
        (("--top-k", 2, "--temperature", 0.5), Recipe(top_k=2, temperature=0.5)),
    ],
)  # fmt: skip
def test_options_reach_the_recipe(run: Run, filled: Registry, words: tuple[object, ...], recipe: Recipe) -> None:
    found = json.loads(run("compose", *PAIR, "--plan", "--json", *words).stdout)
    assert found["recipe"] == filled.plan(("code", "math"), recipe).document["recipe"]
    assert found["recipe"] != filled.plan(("code", "math")).document["recipe"]


def test_members_of_an_ensemble_share_a_trunk(run: Run, filled: Registry) -> None:
    words = (
        "compose",
        *PAIR,
        "--to",
        "ensemble",
        "--trunk",
        "ties",
        "--density",
        "0.5",
        "--weights",
        "code=2",
        "--plan",
    )
    recipe = EnsembleRecipe(trunk="ties", trunk_options={"density": 0.5}, weights={"code": 2.0})
    plan = filled.plan(["code", "math"], recipe)
    document = json.loads(run(*words, "--json").stdout)
    assert (document["digest"], document["parameters"]) == (plan.digest, plan.parameters)
    assert document["bytes"] < filled.plan(["code", "math"], EnsembleRecipe()).nbytes
    shown = run(*words).stdout
    assert re.search(r"trunk +ties\n", shown)
    assert re.search(r"density +0.5\n", shown)


@pytest.mark.check
def test_dense_model_for_documents(run: Run, filled: Registry, tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", sentences("biomed", 8, seed=1))
    words = ("compose", "--experts", "code,math@1,biomed", "--to", "dense", "--trunk", "mean", "--like", text)
    shares = filled.likeness(("code", "math", "biomed"), [text])
    found = json.loads(run(*words, "--plan", "--json").stdout)
    assert found["recipe"]["weights"] == {name: shares[name] for name in sorted(shares)}
    assert sum(shares.values()) == pytest.approx(1)
    assert not (tmp_path / "out").exists()
    run(*words, "--out", tmp_path / "out", "--base", "base")
    filled.compose(sorted(shares), tmp_path / "same", Recipe(to="dense", trunk="mean", weights=shares))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "same")
    assert "--like" not in (tmp_path / "out" / MARKER).read_text()
    empty = write_jsonl(tmp_path / "empty.jsonl", [""])
    told = run(*words[:-1], empty, "--out", tmp_path / "none", code=1).stderr
    assert told.startswith("error: ")
    assert "holds no text to be like" in told
    assert "next: give --like a file of documents" in told


@pytest.mark.check
def test_recipe_is_shown_as_people_write_it(run: Run, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    plan = run("compose", *PAIR, "--router", "domain-embedding", "--bias", "code=1", "--normalize", "--plan").stdout
    shown = dict(line.split(maxsplit=1) for line in plan.splitlines() if line.startswith(("bias", "normalize")))
    assert {key: value.strip() for key, value in shown.items()} == {"bias": "code=1, math=0", "normalize": "yes"}
    run("compose", *PAIR, "--router", "ridge", "--lam", "auto", "--refine", 1, "--out", tmp_path / "out")
    assert "ridge, lam auto, refine 1" in run("compositions").stdout
    told = run("compose", *PAIR, "--to", "dense", "--like", zoo.test["code"], "--plan").stdout
    weights = filled.likeness(("code", "math"), [zoo.test["code"]])
    assert told.startswith(f"weights by --like: {', '.join(f'{name}={weight:g}' for name, weight in weights.items())}")


@pytest.mark.check
def test_lam_curve_for_people_and_as_json(run: Run, filled: Registry, tmp_path: Path) -> None:
    curves = filled.lam_curve(("code", "math"), Recipe(router="ridge", weights={"code": 2.0}))
    words = ("lam-curve", *PAIR, "--weights", "code=2")
    assert json.loads(run(*words, "--json").stdout) == [
        {"layer": layer, **curve.document()} for layer, curve in enumerate(curves)
    ]
    lines = [line.split() for line in run(*words).stdout.splitlines()]
    assert lines[0] == ["layer", "lam", "held-out", "error", "accuracy"]
    rows = [line for line in lines if line[0] in ("0", "1")]
    assert len(rows) == sum(len(curve.lams) for curve in curves)
    starred = {int(row[0]): float(row[1]) for row in rows if row[-1] == "*"}
    assert starred == {layer: curve.best for layer, curve in enumerate(curves)}
    assert json.loads(run(*words, "--router", "ridge", "--json").stdout) == json.loads(run(*words, "--json").stdout)
    assert "no ridge strength" in run(*words, "--router", "context", code=1).stderr
    shown = " ".join(run("lam-curve", "--help").stdout.split())
    assert "or random. [default: ridge]" in shown
    assert "there is no option --to" in run("lam-curve", *PAIR, "--to", "dense", code=2).stderr  # which has no routers


@pytest.mark.check
def test_lam_auto_and_refine_compose(run: Run, filled: Registry, tmp_path: Path) -> None:
    words = ("compose", *PAIR, "--router", "ridge", "--lam", "auto", "--refine", 1, "--out", tmp_path / "out")
    assert run(*words).stdout.startswith("composed code@1, math@1 into ")
    filled.compose(("math", "code"), tmp_path / "same", Recipe(router="ridge", lam="auto", refine=1))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "same")
    document = json.loads((tmp_path / "out" / MARKER).read_text())
    assert [of["layer"] for of in document["lam"]] == [0, 1]
    curve = json.loads(run("lam-curve", *PAIR, "--refine", 1, "--json").stdout)
    assert curve == document["lam"]
    filled.compose(("math", "code"), tmp_path / "own", Recipe(router="ridge"))
    names = load_file(tmp_path / "own" / "model.safetensors")
    refined: dict[str, Any] = load_file(tmp_path / "out" / "model.safetensors")
    changed = [name for name in names if not bool((names[name] == refined[name]).all())]
    assert changed == [f"model.layers.{layer}.block_sparse_moe.gate.weight" for layer in range(2)]
