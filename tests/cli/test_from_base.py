"""Proves: --from-base composes copies of a base model, and refuses what does not go with them before writing."""

from pathlib import Path

import pytest
from jsonschema import validate

from cli.json_schema.commands import schema_of
from registry import Registry
from tests.cli.conftest import Reg
from tests.conftest import Zoo, files_of


@pytest.mark.check
def test_it_composes_what_the_library_does(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose([], tmp_path / "library", from_base=3)
    saved = tmp_path / "r.yaml"
    shown = reg("compose", "--from-base", 3, "--base", "base", "--out", tmp_path / "a", "--save-recipe", saved).output
    assert f"composed 3 copies of base@1 into {tmp_path / 'a'}  {plan.digest[:12]}" in shown
    reg("compose", "--recipe", saved, "--out", tmp_path / "b")
    reg("compose", "--recipe", tmp_path / "a" / "composition.json", "--out", tmp_path / "c")
    for name in ("a", "b", "c"):
        assert files_of(tmp_path / name) == files_of(tmp_path / "library")
    listed = next(line for line in reg("compositions").output.splitlines() if line.startswith(plan.digest[:12]))
    assert listed.split()[2:] == ["3", "copies", "base@1", "base", "random", "2"]
    assert "members        3 copies\nbase           base@1\n" in reg("show", plan.digest).output
    assert f"{plan.digest[:12]}  3 copies  base model base@1" in reg("show", "base").output


def test_options_win_over_a_file(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    saved, plan = tmp_path / "r.yaml", ("compose", "--plan")
    reg("compose", "--from-base", 3, "--plan", "--save-recipe", saved)
    documents = [
        reg.json(*plan, *words)
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


@pytest.mark.check
def test_what_does_not_go_with_it_is_refused(reg: Reg, tmp_path: Path) -> None:
    before = files_of(reg.home)
    for words, code, message in (
        ("--public base", 2, "--public has no part in --router random"),
        ("--context-window 8", 2, "--context-window has no part in --router random"),
        ("--like x.jsonl", 2, "--like needs --to dense"),
        ("--router ridge", 1, "router method 'ridge' cannot tell copies of one base model apart"),
        ("--to dense", 1, "--to dense makes none"),
        ("--base law", 1, "law is an expert, not a base model"),
        ("--balance tokens", 1, "copies of one base model have no statistics"),
    ):
        assert message in reg("compose", "--from-base", 4, *words.split(), "--out", tmp_path / "out", code=code).stderr
    assert "1 is not in the range 2<=x<=1024" in reg("compose", "--from-base", 1, "--plan", code=2).stderr
    assert not (tmp_path / "out").exists()
    assert files_of(reg.home) == before


def test_names_of_copies_and_of_folders_are_explained(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    digest = filled.compose([], tmp_path / "upcycled", from_base=3).digest[:12]
    before = [version.state for version in filled.versions()]
    for words in (("opt-out", "base-1", "--yes"), ("show", "base-1")):
        told = reg(*words, code=1).output
        assert f"there is no expert 'base-1': it is a copy of the base model base in composition {digest}\n" in told
        assert "next: reg show base; opting that out withdraws all of its copies" in told
        assert "did you mean" not in told
    assert [version.state for version in filled.versions()] == before
    told = reg("show", "upcycled", code=1).output
    assert f"there is no expert 'upcycled': a folder of that name has composition {digest}\n" in told
    told += reg("show", f"{tmp_path}/upcycled/", code=1).output
    assert told.count(f"next: reg show {digest}; or reg compositions, which lists all") == 2
    assert f"{tmp_path}/upcycled/ is the folder of composition {digest}, not the name of a version" in told
    data = [f"--data={name}={zoo.test['law']}" for name in ("base", "base-2", "stranger")]
    told = reg("evaluate", tmp_path / "upcycled", *data, "--windows", 1, "--seq-len", 32).output
    because = "a domain has the name of the expert whose text it is"
    assert f"no normalised score for base: it is a base model; {because}" in told
    assert f"no normalised score for base-2: it is a copy of the base model base@1; {because}" in told
    assert "no normalised score for stranger: no expert of that name is registered" in told
    shown = reg("show", digest).output
    assert "stranger" in shown
    assert "average" not in shown


def test_commands_on_statistics_refuse_its_recipe(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("from_base: 4\n")
    assert "reg preview compares experts" in reg("preview", "--recipe", tmp_path / "r.yaml", code=1).output
    # Here the schedule names the experts, and the recipe how they are composed.
    words = ("continual", "--schedule", "law", "--data", f"law={zoo.test['law']}", "--recipe", tmp_path / "r.yaml")
    assert "law" in reg(*words).stdout
