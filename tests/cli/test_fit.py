"""Proves: reg compose takes coefficients and fits them, says what it found, and refuses what has no part in that."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from registry import FitSettings, Recipe, Registry
from registry.io.model_folder import MARKER
from tests.cli.conftest import Reg
from tests.conftest import Zoo, files_of

TRIO = ("compose", "--experts", "code,math,law")
DENSE = ("--to", "dense", "--trunk", "task-arithmetic")
SHORT = ("--fit-tokens", 2048, "--fit-steps", 2, "--fit-device", "cpu")


def test_coefficients_reach_the_recipe(reg: Reg, filled: Registry) -> None:
    words = (*TRIO, *DENSE, "--coefficients", "code=0.7,math=-0.2", "--coefficients", "law=0", "--plan")
    numbers = {"code": 0.7, "law": 0.0, "math": -0.2}
    expected = filled.plan([*numbers], Recipe(to="dense", trunk="task-arithmetic", coefficients=numbers))
    found = reg.json(*words)
    assert (found["recipe"], found["digest"]) == (expected.document["recipe"], expected.digest)
    lines = [line.split() for line in reg(*words).stdout.splitlines()]
    assert lines[0] == ["index", "expert", "digest", "coefficient", "tokens"]
    assert [line[3] for line in lines[1:4]] == ["0.7", "0", "-0.2"]
    reg(*TRIO, "--trunk", "task-arithmetic", "--coefficients", "code=1,math=1,law=1", "--plan")


@pytest.mark.check
def test_fitting_composing_and_composing_again(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    words = (*TRIO, *DENSE, "--fit", zoo.test["code"], *SHORT, "--save-recipe", tmp_path / "r.yaml")
    told = reg(*words, "--out", tmp_path / "out").stdout
    settings = FitSettings(tokens=2048, steps=2, device="cpu")
    fitted = filled.fit(["code", "law", "math"], [zoo.test["code"]], settings=settings)
    shown = ", ".join(f"{name}={number:g}" for name, number in fitted.coefficients.items())
    assert f"coefficients by --fit: {shown}\n" in told
    record = fitted.record
    assert f"{record.before:.4f} with equal coefficients, {record.after:.4f} with these" in told
    recipe = json.loads((tmp_path / "out" / MARKER).read_text())["recipe"]
    assert (recipe["coefficients"], recipe["fit"]) == (fitted.coefficients, asdict(record))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "composed with one fitted number for each expert by expert-registry" in card
    assert "| coefficients | fitted to" in card
    assert "ablin2025soup" in card
    for again in (tmp_path / "r.yaml", tmp_path / "out" / MARKER):
        reg("compose", "--recipe", again, "--out", tmp_path / "again", "--force")
        assert files_of(tmp_path / "again") == files_of(tmp_path / "out")
    assert "loss on held-out text" in reg("compose", "--recipe", tmp_path / "r.yaml", "--plan").stdout
    assert "fit" in reg("show", filled.compositions()[-1].digest[:12]).stdout
    assert reg("reproduce", tmp_path / "out").exit_code == 0
    # Other members are refused, until they are fitted again; other coefficients are those of a person.
    told = reg("compose", "--recipe", tmp_path / "r.yaml", "--experts", "code,math", "--plan", code=1).stderr
    assert "error: the coefficients were fitted for other members" in told
    assert "next: fit them again: reg compose --experts code@1,math@1" in told
    given = ("--coefficients", "code=1,math=0")
    reg("compose", "--recipe", tmp_path / "r.yaml", "--experts", "code,math", *given, "--plan")
    refit = ("--fit", zoo.test["code"], *SHORT)
    reg("compose", "--recipe", tmp_path / "r.yaml", "--experts", "code,math", *refit, "--out", tmp_path / "pair")
    assert {*json.loads((tmp_path / "pair" / MARKER).read_text())["recipe"]["coefficients"]} == {"code", "math"}
    # Another trunk takes no coefficients, and drops the record with them.
    reg("compose", "--recipe", tmp_path / "r.yaml", "--trunk", "mean", "--plan")


def test_a_plan_fits_nothing_and_says_what_a_fit_would_read(
    reg: Reg, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "fit", lambda *_, **__: pytest.fail("a plan trains nothing"))
    words = (*TRIO, *DENSE, "--fit", zoo.test["code"], *SHORT, "--plan")
    told = reg(*words).stdout
    lines = " ".join(told.split())
    assert "fit reads up to 2,048 tokens of code.test.jsonl in 2 steps; coefficients are found when" in lines
    assert "composition its digest depends on the coefficients" in lines
    assert [line.split()[3] for line in told.splitlines()[1:4]] == ["-"] * 3
    document = reg.json(*words)
    assert (document["digest"], document["recipe"]["coefficients"]) == (None, None)
    assert "name an existing file" in reg(*TRIO, *DENSE, "--fit", "absent.txt", "--plan", code=1).stderr
    assert "lr is 0.0" in reg(*words, "--fit-lr", "0", code=1).stderr
    refused = reg(*words, "--save-recipe", tmp_path / "recipe.yaml", code=2).stderr
    assert "--plan fits no coefficients, so --save-recipe has none to write" in refused
    assert not (tmp_path / "recipe.yaml").exists()


def test_errors_say_what_to_do(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    for words, message, hint in (
        (("--coefficients", "code=1,math=0"), "there is no coefficient for law", "--coefficients code=1,law=0,math=0"),
        (("--coefficients", "code=1", "--weights", "code=2"), "weights multiply task vectors", "drop --weights"),
        (("--coefficients", "code=inf"), "the coefficient of code is inf", "such as --coefficients code=0.5"),
        (("--fit", zoo.test["code"], "--scale", "2"), "scale multiplies all task vectors", "drop --scale"),
    ):
        told = reg(*TRIO, *DENSE, "--out", tmp_path / "out", *words, code=1).stderr
        assert told.startswith("error: ")
        assert message in told
        assert hint in told
    assert not (tmp_path / "out").exists()
