"""Proves: --recipe composes what the file says, options win over it, and --save-recipe writes what was asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import EnsembleRecipe, Recipe, Registry
from registry.composition import read_recipe
from registry.composition.recipe import recipe_schema
from registry.composition.recipe.recipe_field_type import FieldKind
from registry.composition.recipe.recipe_fields import FIELDS
from registry.io.model_folder import MARKER
from tests.conftest import files_of

Run = Callable[..., Result]
PAIR = ("--experts", "code,math")
FILE = "experts: {math: 2, code@1: }\nbase: base\ntrunk: ties\ntrunk_options: {density: 0.5}\ntop_k: 1\n"


@pytest.fixture
def run(filled: Registry) -> Run:
    """Return a function that runs `reg --home … ARGS` and expects success, or the exit code that is given."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_every_field_is_an_option_with_its_help_and_default() -> None:
    command = main.get_command(click.Context(main), "compose")
    assert command is not None
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    context = click.Context(command, info_name="compose")
    for name, one in FIELDS.items():
        option = options[name]
        assert option.opts == [one.option]
        record = option.get_help_record(context)
        assert record is not None
        names, text = record
        assert one.help in text
        if one.kind is FieldKind.SWITCH:
            shown = f"no-{one.option.removeprefix('--')}"
            assert option.secondary_opts == ([] if one.stands_for else [f"--{shown}"])
            assert one.stands_for or f"[default: {shown}]" in text
        else:
            assert names == f"{one.option} {one.metavar}"
            assert f"[default: {one.default_text}" in text
            assert tuple(getattr(option.type, "choices", ())) == one.choices


@pytest.mark.check
def test_the_file_is_composed(run: Run, filled: Registry, file: Path, tmp_path: Path) -> None:
    recipe = Recipe("ties", {"density": 0.5}, top_k=1, weights={"math": 2.0})
    assert run("compose", "--recipe", file, "--out", tmp_path / "out").stdout.startswith("composed code@1, math@1 into")
    filled.compose(["code", "math"], tmp_path / "same", recipe, base="base")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "same")


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize(
    ("words", "experts", "recipe"),
    [
        (("--top-k", 2), ("code", "math"), Recipe("ties", {"density": 0.5}, top_k=2, weights={"math": 2.0})),
        (("--density", 0.9), ("code", "math"), Recipe("ties", {"density": 0.9}, top_k=1, weights={"math": 2.0})),
        (("--trunk", "mean"), ("code", "math"), Recipe("mean", top_k=1, weights={"math": 2.0})),
        (("--weights", "code=3"), ("code", "math"), Recipe("ties", {"density": 0.5}, top_k=1, weights={"code": 3.0})),
        (("--experts", "code,law"), ("code", "law"), Recipe("ties", {"density": 0.5}, top_k=1)),
        (("--to", "ensemble"), ("code", "math"), EnsembleRecipe(top_k=1, weights={"math": 2.0})),
        (("--to", "dense"), ("code", "math"), Recipe("ties", {"density": 0.5}, to="dense", weights={"math": 2.0})),
        (("--remote-code",), ("code", "math"),
         Recipe("ties", {"density": 0.5}, top_k=1, weights={"math": 2.0}, host="remote-code")),
    ],
)  # fmt: skip
def test_options_win_over_the_file(
    run: Run,
    filled: Registry,
    file: Path,
    words: tuple[object, ...],
    experts: tuple[str, ...],
    recipe: Recipe | EnsembleRecipe,
) -> None:
    found = json.loads(run("compose", "--recipe", file, "--plan", "--json", *words).stdout)
    assert found["digest"] == filled.plan(experts, recipe).digest


def test_a_base_model_that_is_named_wins(run: Run, filled: Registry, file: Path, tmp_path: Path) -> None:
    filled.export("law", tmp_path / "law")
    filled.add_base("other", tmp_path / "law")
    words = ("compose", "--recipe", file, "--plan", "--json")
    assert json.loads(run(*words).stdout)["base"]["name"] == "base"
    assert json.loads(run(*words, "--base", "other").stdout)["base"]["name"] == "other"
    refused = run(*words, "--trunk", "mean", "--base", "other", code=1).stderr
    assert "takes no base model, and base 'other' was given" in refused


def test_switches_of_a_file_can_be_turned_off(run: Run, filled: Registry, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("experts: [code, math]\nrouter: ridge\nnormalize: true\nrefine_mlp: true\n", encoding="utf-8")
    words = ("compose", "--recipe", path, "--plan", "--json", "--no-normalize", "--no-refine-mlp")
    assert json.loads(run(*words).stdout)["digest"] == filled.plan(["code", "math"], Recipe(router="ridge")).digest


@pytest.mark.check
def test_a_composition_can_be_composed_again(run: Run, filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(router="ridge", lam="auto", weights={"code": 3.0})
    plan = filled.compose(["code", "math"], tmp_path / "out", recipe)
    words = ("compose", "--recipe", tmp_path / "out" / MARKER, "--plan", "--json")
    assert json.loads(run(*words).stdout)["digest"] == plan.digest
    more = json.loads(run(*words, "--experts", "code,law,math").stdout)
    assert more["digest"] == filled.plan(["code", "law", "math"], recipe).digest
    filled.opt_out("math")
    assert "holds math@1, which was opted out" in run(*words, code=1).stderr
    assert (
        json.loads(run(*words, "--experts", "code,law").stdout)["digest"] == filled.plan(["code", "law"], recipe).digest
    )


@pytest.mark.check
def test_what_was_asked_for_is_saved(run: Run, filled: Registry, file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.yaml"
    words = ("compose", "--recipe", file, "--router", "ridge", "--lam", "auto", "--save-recipe", saved)
    told = run(*words, "--plan")
    assert told.stderr.splitlines()[0] == f"recipe written to {saved}"
    found = read_recipe(saved)
    assert (found.experts, found.base) == (("math", "code@1"), "base")
    expected = Recipe("ties", {"density": 0.5}, router="ridge", lam="auto", top_k=1, weights={"math": 2.0})
    assert found.recipe == expected
    before = saved.read_bytes()
    refused = run(*words, "--top-k", 2, "--out", tmp_path / "out", code=1).stderr
    assert refused.startswith(f"error: {saved} exists")
    assert saved.read_bytes() == before
    assert not (tmp_path / "out").exists()
    run(*words, "--top-k", 2, "--out", tmp_path / "out", "--force")
    again = json.loads(run("compose", "--recipe", saved, "--plan", "--json").stdout)
    assert again["digest"] == json.loads((tmp_path / "out" / MARKER).read_text())["digest"]
    assert again["recipe"]["top_k"] == 2


def test_nothing_is_saved_of_what_failed(run: Run, filled: Registry, file: Path, tmp_path: Path) -> None:
    run("compose", "--recipe", file, "--host", "nonsense", "--save-recipe", tmp_path / "saved.yaml", "--plan", code=1)
    assert not (tmp_path / "saved.yaml").exists()


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("topk: 1", (), "recipe.yaml:1: there is no field 'topk'; did you mean 'top_k'?"),
        ("experts: [code]\ntop_k: 2", (), "recipe.yaml:2: top-k is 2"),
        ("experts: [cod]", (), "there is no expert 'cod'; did you mean 'code'?"),
    ],
)
def test_mistakes_in_a_file_are_errors(
    run: Run, file: Path, text: str, words: tuple[object, ...], message: str
) -> None:
    file.write_text(text, encoding="utf-8")
    told = run("compose", "--recipe", file, "--plan", *words, code=1).stderr
    assert message in told
    assert "next: " in told


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("trunk: mean", (), "give --experts A,B, or a --recipe that names them"),
        (
            "router: random",
            ("--lam", 1, "--experts", "code"),
            "--lam has no part in --router random. It goes with --router ridge or",
        ),
        ("to: dense", ("--refine", 1, "--experts", "code"), "--refine has no part in what --to dense makes."),
        ("trunk: base", ("--to", "dense", "--experts", "code"), "--to dense --trunk base is the base model itself"),
        ("to: ensemble", ("--routing-tokens", 4, "--experts", "code"), "has no part in --routing posterior."),
        ("trunk: ties", ("--alpha", 0.5, "--experts", "code"), "--alpha has no part in --trunk ties."),
        ("experts: {code: 2}", ("--to", "dense", "--like", "x"), "--like needs --to dense, and makes the weights"),
    ],
)
def test_options_that_do_not_fit_the_file_are_usage_errors(
    run: Run, file: Path, text: str, words: tuple[object, ...], message: str
) -> None:
    file.write_text(text, encoding="utf-8")
    assert message in run("compose", "--recipe", file, "--plan", *words, code=2).stderr


def test_without_experts_nothing_is_composed(run: Run) -> None:
    for command in ("compose --plan", "preview", "lam-curve"):
        assert "give --experts A,B" in run(*command.split(), code=2).stderr


@pytest.mark.check
def test_other_commands_read_the_file(run: Run, filled: Registry, file: Path) -> None:
    file.write_text("experts: {code: 3, math: }\nrouter: ridge\ntemperature: 0.5\ndtype: bfloat16\n", encoding="utf-8")
    for command, more in (("preview", ("--router", "ridge", "--temperature", 0.5)), ("lam-curve", ())):
        by_file = run(command, "--recipe", file, "--json").stdout
        assert by_file == run(command, *PAIR, "--weights", "code=3", *more, "--json").stdout
        assert by_file != run(command, "--recipe", file, "--weights", "code=1", "--json").stdout
    file.write_text("experts: [code, math]\nto: ensemble\n", encoding="utf-8")
    told = run("preview", "--recipe", file, code=1).stderr
    assert f"reg preview is for mixtures, and the recipe in {file} makes ensemble" in told


def test_the_schema_of_recipe_files_is_printed(run: Run) -> None:
    printed = json.loads(run("schema", "recipe").stdout)
    assert printed == recipe_schema()
    jsonschema.validate({"experts": ["code"], "trunk": "ties", "trunk_options": {"density": 0.5}}, printed)
    assert "did you mean 'recipe'?" in run("schema", "recipes", code=1).stderr
