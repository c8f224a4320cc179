"""Proves: --from-base composes copies of a base model, and refuses what does not go with them before writing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import validate

from cli.json_schema.commands import schema_of
from cli.main import main
from registry import Registry
from tests.conftest import Zoo, files_of


def run(registry: Registry, *words: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.check
def test_it_composes_what_the_library_does(filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose([], tmp_path / "library", from_base=3)
    saved = tmp_path / "r.yaml"
    shown = run(filled, "compose", "--from-base", 3, "--base", "base", "--out", tmp_path / "a", "--save-recipe", saved)
    assert f"composed 3 copies of base@1 into {tmp_path / 'a'}  {plan.digest[:12]}" in shown
    run(filled, "compose", "--recipe", saved, "--out", tmp_path / "b")
    run(filled, "compose", "--recipe", tmp_path / "a" / "composition.json", "--out", tmp_path / "c")
    for name in ("a", "b", "c"):
        assert files_of(tmp_path / name) == files_of(tmp_path / "library")
    listed = next(line for line in run(filled, "compositions").splitlines() if line.startswith(plan.digest[:12]))
    assert listed.split()[2:] == ["3", "copies", "base@1", "base", "random", "2"]
    assert "members        3 copies\nbase           base@1\n" in run(filled, "show", plan.digest)
    assert f"{plan.digest[:12]}  3 copies  base model base@1" in run(filled, "show", "base")


def test_options_win_over_a_file(filled: Registry, tmp_path: Path) -> None:
    saved, plan = tmp_path / "r.yaml", ("compose", "--plan", "--json")
    run(filled, "compose", "--from-base", 3, "--plan", "--save-recipe", saved)
    documents = [
        json.loads(run(filled, *plan, *words))
        for words in (
            ("--recipe", saved, "--from-base", 2, "--seed", 1),
            ("--from-base", 2, "--seed", 1),
            ("--recipe", saved, "--experts", "law,code"),
            ("--experts", "law,code", "--router", "random", "--trunk", "base"),
        )
    ]
    for document in documents:
        validate(document, schema_of("reg compose"))
    assert documents[0] == documents[1]
    assert documents[2] == documents[3]
    assert documents[0]["from_base"] == 2
    assert "from_base" not in documents[2]
    assert documents[0]["versions"] == ["base@1", "base@1"]


@pytest.mark.check(after=4)
@pytest.mark.trust(after=10)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--experts", "law"), 2, "--from-base and --experts exclude one another"),
        (("--public", "base"), 2, "--public has no part in --router random"),
        (("--context-window", "8"), 2, "--context-window has no part in --router random"),
        (("--like", "x.jsonl"), 2, "--like needs --to dense"),
        (("--router", "ridge"), 1, "router method 'ridge' cannot tell copies of one base model apart"),
        (("--trunk", "mean"), 1, "trunk method 'mean' has nothing to combine"),
        (("--to", "dense"), 1, "--to dense makes none"),
        (("--to", "ensemble"), 1, "--to ensemble makes none"),
        (("--refine-mlp",), 1, "there is nothing to refine"),
        (("--weights", "base-1=2"), 1, "weights change nothing"),
        (("--top-k", "5"), 1, "top-k is 5, it must be from 1 to 4"),
        (("--base", "law"), 1, "law is an expert, not a base model"),
        (("--base", "nobody"), 1, "there is no base model 'nobody'\n  next: register it: reg add-base nobody CKPT"),
        (("--base", "some/path"), 1, "next: register the checkpoint, then give its name: reg add-base NAME some/path"),
        (("--balance", "tokens"), 1, "copies of one base model have no statistics"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    filled: Registry, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    before = files_of(filled.home.path)
    told = run(filled, "compose", "--from-base", 4, *words, "--out", tmp_path / "out", code=code)
    assert message in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()
    assert files_of(filled.home.path) == before
    assert "1 is not in the range 2<=x<=1024" in run(filled, "compose", "--from-base", 1, "--plan", code=2)


def test_names_of_copies_and_of_folders_are_explained(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    digest = filled.compose([], tmp_path / "upcycled", from_base=3).digest[:12]
    before = [version.state for version in filled.versions()]
    for words in (("opt-out", "base-1", "--yes"), ("show", "base-1")):
        told = run(filled, *words, code=1)
        assert f"there is no expert 'base-1': it is a copy of the base model base in composition {digest}\n" in told
        assert "next: reg show base; opting that out withdraws all of its copies" in told
        assert "did you mean" not in told
    assert [version.state for version in filled.versions()] == before
    told = run(filled, "show", "upcycled", code=1)
    assert f"there is no expert 'upcycled': a folder of that name has composition {digest}\n" in told
    told += run(filled, "show", f"{tmp_path}/upcycled/", code=1)
    assert told.count(f"next: reg show {digest}; or reg compositions, which lists all") == 2
    assert f"{tmp_path}/upcycled/ is the folder of composition {digest}, not the name of a version" in told
    data = [f"--data={name}={zoo.test['law']}" for name in ("base", "base-2", "stranger")]
    told = run(filled, "evaluate", tmp_path / "upcycled", *data, "--windows", 1, "--seq-len", 32)
    because = "a domain has the name of the expert whose text it is"
    assert f"no normalised score for base: it is a base model; {because}" in told
    assert f"no normalised score for base-2: it is a copy of the base model base@1; {because}" in told
    assert "no normalised score for stranger: no expert of that name is registered" in told
    shown = run(filled, "show", digest)
    assert "stranger" in shown
    assert "average" not in shown


def test_commands_on_statistics_refuse_its_recipe(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("from_base: 4\n")
    for command in (("preview",), ("lam-curve",), ("continual", "--data", f"law={zoo.test['law']}")):
        words = (*command, "--recipe", tmp_path / "r.yaml", *(("--schedule", "law") if len(command) > 1 else ()))
        if len(command) > 1:  # the schedule names the experts, and the recipe how they are composed
            assert "law" in run(filled, *words)
        else:
            assert f"reg {command[0]} compares experts" in run(filled, *words, code=1)
