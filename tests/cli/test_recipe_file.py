"""Proves: --recipe composes what the file says, options win over it, and --save-recipe writes what was asked for."""

import json
from pathlib import Path

import click
import jsonschema
import pytest

from cli.main import main
from registry import Recipe, Registry
from registry.composition import read_recipe, recipe_schema
from registry.composition.option import OptionKind
from registry.composition.recipe.fields import FIELDS
from registry.io.model_folder import MARKER
from tests.cli.conftest import PAIR, Reg

FILE = "experts: {math: 2, code@1: }\nbase: base\ntrunk: ties\ntrunk_options: {density: 0.5}\ntop_k: 1\n"


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
        if one.kind is OptionKind.SWITCH:
            shown = f"no-{one.option.removeprefix('--')}"
            assert option.secondary_opts == ([] if one.stands_for else [f"--{shown}"])
            assert one.stands_for or f"[default: {shown}]" in text
        else:
            assert names == f"{one.option} {one.metavar}"
            assert f"[default: {one.default_text}" in text
            assert tuple(getattr(option.type, "choices", ())) == one.choices


@pytest.mark.check
def test_options_win_over_the_file(reg: Reg, filled: Registry, file: Path) -> None:
    pair, ties = ("code", "math"), {"density": 0.5}
    cases: tuple[tuple[tuple[object, ...], tuple[str, ...], Recipe], ...] = (
        ((), pair, Recipe(trunk="ties", trunk_options=ties, top_k=1, weights={"math": 2.0})),
        (("--top-k", 2), pair, Recipe(trunk="ties", trunk_options=ties, top_k=2, weights={"math": 2.0})),
        (
            ("--density", 0.9),
            pair,
            Recipe(trunk="ties", trunk_options={"density": 0.9}, top_k=1, weights={"math": 2.0}),
        ),
        (("--trunk", "mean"), pair, Recipe(trunk="mean", top_k=1, weights={"math": 2.0})),
        (("--weights", "code=3"), pair, Recipe(trunk="ties", trunk_options=ties, top_k=1, weights={"code": 3.0})),
        (("--experts", "code,law"), ("code", "law"), Recipe(trunk="ties", trunk_options=ties, top_k=1)),
        (("--to", "ensemble"), pair, Recipe(to="ensemble", top_k=1, weights={"math": 2.0})),
        (("--to", "dense"), pair, Recipe(trunk="ties", trunk_options=ties, to="dense", weights={"math": 2.0})),
        (
            ("--remote-code",),
            pair,
            Recipe(trunk="ties", trunk_options=ties, top_k=1, weights={"math": 2.0}, host="remote-code"),
        ),
    )
    for words, experts, recipe in cases:
        found = reg.json("compose", "--recipe", file, "--plan", *words)
        assert found["digest"] == filled.plan(experts, recipe).digest, words
    file.write_text("experts: [code, math]\nrouter: ridge\nnormalize: true\n", encoding="utf-8")
    switched_off = reg.json("compose", "--recipe", file, "--plan", "--no-normalize")
    assert switched_off["digest"] == filled.plan(pair, Recipe(router="ridge")).digest


def test_a_base_model_that_is_named_wins(reg: Reg, filled: Registry, file: Path, tmp_path: Path) -> None:
    filled.export("law", tmp_path / "law")
    filled.add_base("other", tmp_path / "law")
    words = ("compose", "--recipe", file, "--plan")
    assert reg.json(*words)["base"]["name"] == "base"
    assert reg.json(*words, "--base", "other")["base"]["name"] == "other"
    refused = reg(*words, "--trunk", "mean", "--base", "other", code=1).stderr
    assert "takes no base model, and base 'other' was given" in refused


@pytest.mark.check
def test_a_composition_can_be_composed_again(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    recipe = Recipe(router="ridge", lam=0.5, weights={"code": 3.0})
    plan = filled.compose(["code", "math"], tmp_path / "out", recipe)
    words = ("compose", "--recipe", tmp_path / "out" / MARKER, "--plan")
    assert reg.json(*words)["digest"] == plan.digest
    more = reg.json(*words, "--experts", "code,law,math")
    assert more["digest"] == filled.plan(["code", "law", "math"], recipe).digest
    filled.opt_out("math")
    assert "holds math@1, which was opted out" in reg(*words, code=1).stderr
    assert reg.json(*words, "--experts", "code,law")["digest"] == filled.plan(["code", "law"], recipe).digest


@pytest.mark.check
def test_what_was_asked_for_is_saved(reg: Reg, filled: Registry, file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.yaml"
    words = ("compose", "--recipe", file, "--router", "ridge", "--lam", 0.5, "--save-recipe", saved)
    told = reg(*words, "--plan")
    assert told.stderr.splitlines()[0] == f"recipe written to {saved}"
    found = read_recipe(saved)
    assert (found.experts, found.base) == (("math", "code@1"), "base")
    expected = Recipe(
        trunk="ties", trunk_options={"density": 0.5}, router="ridge", lam=0.5, top_k=1, weights={"math": 2.0}
    )
    assert found.recipe == expected
    before = saved.read_bytes()
    refused = reg(*words, "--top-k", 2, "--out", tmp_path / "out", code=1).stderr
    assert refused.startswith(f"error: {saved} exists")
    assert saved.read_bytes() == before
    assert not (tmp_path / "out").exists()
    reg(*words, "--top-k", 2, "--out", tmp_path / "out", "--force")
    again = reg.json("compose", "--recipe", saved, "--plan")
    assert again["digest"] == json.loads((tmp_path / "out" / MARKER).read_text())["digest"]
    assert again["recipe"]["top_k"] == 2


def test_mistakes_in_a_file_are_errors(reg: Reg, file: Path, tmp_path: Path) -> None:
    for text, message in (
        ("topk: 1", "recipe.yaml:1: there is no field 'topk'; did you mean 'top_k'?"),
        ("experts: [cod]", "there is no expert 'cod'; did you mean 'code'?"),
        ("host: nonsense", "host 'nonsense'"),
    ):
        file.write_text(text if "experts" in text else f"{text}\nexperts: [code]\n", encoding="utf-8")
        told = reg("compose", "--recipe", file, "--plan", "--save-recipe", tmp_path / "saved.yaml", code=1).stderr
        assert message in told
        assert "next: " in told
    assert not (tmp_path / "saved.yaml").exists()  # of what failed


def test_options_that_do_not_fit_the_file_are_usage_errors(reg: Reg, file: Path) -> None:
    for text, words, message in (
        ("trunk: mean", "", "give --experts A,B, or a --recipe that names them"),
        ("router: random", "--lam 1", "--lam has no part in --router random. It goes with --router ridge or"),
        ("to: dense", "--refine 1", "--refine has no part in what --to dense makes."),
        (
            "trunk: base",
            "--to dense",
            "a dense model with the trunk of the base is the base model itself: choose another --trunk.",
        ),
        ("to: ensemble", "--routing-tokens 4", "has no part in --routing posterior."),
        ("trunk: ties", "--alpha 0.5", "--alpha has no part in --trunk ties."),
        ("experts: {code: 2}", "--to dense --like x", "--like needs --to dense, and makes the weights"),
    ):
        file.write_text(text, encoding="utf-8")
        experts = ["--experts", "code"] if words and "experts" not in text else []
        told = reg("compose", "--recipe", file, "--plan", *experts, *words.split(), code=2).stderr
        assert message in told, text


def test_without_experts_nothing_is_composed(reg: Reg) -> None:
    for command in ("compose --plan", "preview"):
        assert "give --experts A,B" in reg(*command.split(), code=2).stderr


@pytest.mark.check
def test_other_commands_read_the_file(reg: Reg, filled: Registry, file: Path) -> None:
    file.write_text("experts: {code: 3, math: }\nrouter: ridge\ntemperature: 0.5\ndtype: bfloat16\n", encoding="utf-8")
    by_file = reg("preview", "--recipe", file, "--json").stdout
    options = ("--weights", "code=3", "--router", "ridge", "--temperature", 0.5)
    assert by_file == reg("preview", *PAIR, *options, "--json").stdout
    assert by_file != reg("preview", "--recipe", file, "--weights", "code=1", "--json").stdout
    file.write_text("experts: [code, math]\nto: ensemble\n", encoding="utf-8")
    told = reg("preview", "--recipe", file, code=1).stderr
    assert f"reg preview is for mixtures, and the recipe in {file} makes ensemble" in told


def test_the_schema_of_recipe_files_is_printed(reg: Reg) -> None:
    printed = json.loads(reg("schema", "recipe").stdout)
    assert printed == recipe_schema()
    jsonschema.validate({"experts": ["code"], "trunk": "ties", "trunk_options": {"density": 0.5}}, printed)
    assert "did you mean 'recipe'?" in reg("schema", "recipes", code=1).stderr
