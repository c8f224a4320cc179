"""Proves: reg compose takes coefficients and fits them, says what it found, and refuses what has no part in that."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import FitSettings, Recipe, Registry
from registry.io.model_folder import MARKER
from tests.conftest import Zoo, files_of

Run = Callable[..., Result]
TRIO = ("compose", "--experts", "code,math,law")
DENSE = ("--to", "dense", "--trunk", "task-arithmetic")
SHORT = ("--fit-tokens", 2048, "--fit-steps", 2, "--fit-device", "cpu")


@pytest.fixture
def run(filled: Registry) -> Run:
    """Return a function that runs `reg --home … ARGS` and expects success, unless told otherwise."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return invoke


def test_coefficients_reach_the_recipe(run: Run, filled: Registry) -> None:
    words = (*TRIO, *DENSE, "--coefficients", "code=0.7,math=-0.2", "--coefficients", "law=0", "--plan")
    numbers = {"code": 0.7, "law": 0.0, "math": -0.2}
    expected = filled.plan([*numbers], Recipe(to="dense", trunk="task-arithmetic", coefficients=numbers))
    found = json.loads(run(*words, "--json").stdout)
    assert (found["recipe"], found["digest"]) == (expected.document["recipe"], expected.digest)
    lines = [line.split() for line in run(*words).stdout.splitlines()]
    assert lines[0] == ["index", "expert", "digest", "coefficient", "tokens"]
    assert [line[3] for line in lines[1:4]] == ["0.7", "0", "-0.2"]
    run(*TRIO, "--trunk", "task-arithmetic", "--coefficients", "code=1,math=1,law=1", "--plan")


@pytest.mark.check
def test_fitting_composing_and_composing_again(run: Run, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    words = (*TRIO, *DENSE, "--fit", zoo.test["code"], *SHORT, "--save-recipe", tmp_path / "r.yaml")
    told = run(*words, "--out", tmp_path / "out").stdout
    settings = FitSettings(tokens=2048, steps=2, device="cpu")
    fitted = filled.fit(["code", "law", "math"], [zoo.test["code"]], settings=settings)
    shown = ", ".join(f"{name}={number:g}" for name, number in fitted.coefficients.items())
    assert f"coefficients by --fit: {shown}\n" in told
    record = fitted.record
    assert f"{record.before:.4f} with equal coefficients, {record.after:.4f} with these" in told
    recipe = json.loads((tmp_path / "out" / MARKER).read_text())["recipe"]
    assert (recipe["coefficients"], recipe["fit"]) == (fitted.coefficients, record.document())
    card = (tmp_path / "out" / "README.md").read_text()
    assert "composed with one fitted number for each expert by expert-registry" in card
    assert "| coefficients | fitted to" in card
    assert "ablin2025soup" in card
    for again in (tmp_path / "r.yaml", tmp_path / "out" / MARKER):
        run("compose", "--recipe", again, "--out", tmp_path / "again", "--force")
        assert files_of(tmp_path / "again") == files_of(tmp_path / "out")
    assert "loss on held-out text" in run("compose", "--recipe", tmp_path / "r.yaml", "--plan").stdout
    assert "fit" in run("show", filled.compositions()[-1].digest[:12]).stdout
    assert run("reproduce", tmp_path / "out").exit_code == 0
    # Other members are refused, until they are fitted again; other coefficients are those of a person.
    told = run("compose", "--recipe", tmp_path / "r.yaml", "--experts", "code,math", "--plan", code=1).stderr
    assert "error: the coefficients were fitted for other members" in told
    assert "next: fit them again: reg compose --experts code@1,math@1" in told
    given = ("--coefficients", "code=1,math=0")
    run("compose", "--recipe", tmp_path / "r.yaml", "--experts", "code,math", *given, "--plan")
    refit = ("--fit", zoo.test["code"], *SHORT)
    run("compose", "--recipe", tmp_path / "r.yaml", "--experts", "code,math", *refit, "--out", tmp_path / "pair")
    assert {*json.loads((tmp_path / "pair" / MARKER).read_text())["recipe"]["coefficients"]} == {"code", "math"}
    # Another trunk takes no coefficients, and drops the record with them.
    run("compose", "--recipe", tmp_path / "r.yaml", "--trunk", "mean", "--plan")


def test_a_plan_fits_nothing_and_says_what_a_fit_would_read(
    run: Run, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.compose.fitted", lambda *_, **__: pytest.fail("a plan trains nothing"))
    words = (*TRIO, *DENSE, "--fit", zoo.test["code"], *SHORT, "--plan")
    told = run(*words).stdout
    lines = " ".join(told.split())
    assert "fit reads up to 2,048 tokens of code.test.jsonl in 2 steps; coefficients are found when" in lines
    assert "composition its digest depends on the coefficients" in lines
    assert [line.split()[3] for line in told.splitlines()[1:4]] == ["-"] * 3
    document = json.loads(run(*words, "--json").stdout)
    assert (document["digest"], document["recipe"]["coefficients"]) == (None, None)
    assert "name an existing file" in run(*TRIO, *DENSE, "--fit", "absent.txt", "--plan", code=1).stderr
    assert "lr is 0.0" in run(*words, "--fit-lr", "0", code=1).stderr
    refused = run(*words, "--save-recipe", tmp_path / "recipe.yaml", code=2).stderr
    assert "--plan fits no coefficients, so --save-recipe has none to write" in refused
    assert not (tmp_path / "recipe.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--coefficients", "code=1"), "--coefficients has no part in --trunk regmean."),
        ((*DENSE, "--coefficients", "code=x"), "the coefficient of code is 'x', not a number"),
        (("--fit-steps", "3"), "--fit-steps is for --fit."),
        (("--fit", "FILE"), "--fit needs --to dense --trunk task-arithmetic."),
        (("--fit", "FILE", "--trunk", "task-arithmetic"), "--fit needs --to dense --trunk task-arithmetic."),
        (("--fit", "FILE", "--to", "ensemble"), "--fit needs --to dense --trunk task-arithmetic."),
        (("--fit", "FILE", *DENSE, "--like", "FILE"), "--fit and --like exclude one another"),
        (("--fit", "FILE", *DENSE, "--coefficients", "code=1"), "--fit makes the coefficients itself"),
        (("--fit", "FILE", *DENSE, "--fit-steps", "0"), "--fit-steps: "),
    ],
)
def test_usage_errors(zoo: Zoo, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    given = [zoo.test["code"] if word == "FILE" else word for word in words]
    arguments = ["--home", str(tmp_path / "home"), *TRIO, "--out", str(tmp_path / "out"), *map(str, given)]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, (tmp_path / "home").exists(), (tmp_path / "out").exists()) == (2, False, False)
    assert message in result.stderr


@pytest.mark.check(after=4)
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            (*DENSE, "--coefficients", "code=1,math=0"),
            "there is no coefficient for law",
            "--coefficients code=1,law=0,math=0",
        ),
        ((*DENSE, "--coefficients", "code=1", "--scale", "2"), "scale multiplies all task vectors", "drop --scale"),
        (
            (*DENSE, "--coefficients", "code=1", "--weights", "code=2"),
            "weights multiply task vectors",
            "drop --weights",
        ),
        ((*DENSE, "--coefficients", "code=inf"), "the coefficient of code is inf", "such as --coefficients code=0.5"),
        ((*DENSE, "--fit", "absent.jsonl"), "absent.jsonl is not a file", "name an existing file"),
        ((*DENSE, "--fit", "FILE", "--scale", "2"), "scale multiplies all task vectors", "drop --scale"),
        ((*DENSE, "--fit", "FILE", "--fit-lr", "0"), "lr is 0.0", "the default is 0.05"),
    ],
)
def test_errors_say_what_to_do(
    run: Run, zoo: Zoo, tmp_path: Path, words: tuple[str, ...], message: str, hint: str
) -> None:
    given = [zoo.test["code"] if word == "FILE" else word for word in words]
    told = run(*TRIO, "--out", tmp_path / "out", *given, code=1).stderr
    assert told.startswith("error: ")
    assert message in told
    assert hint in told
    assert not (tmp_path / "out").exists()
