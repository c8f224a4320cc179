"""Proves: compose warns of drowned and overlapping members with the figures of preview, and changes no byte by it."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import EnsembleRecipe, Recipe, Registry
from registry.composition import plan_warnings
from tests.conftest import Zoo, files_of


def test_distinct_members_bring_no_warning(filled: Registry) -> None:
    for recipe in (Recipe(), Recipe(router="ridge"), Recipe(to="dense"), EnsembleRecipe()):
        assert plan_warnings(filled.plan(["math", "code", "law"], recipe)) == ()
    assert plan_warnings(filled.plan(["math"])) == ()


def test_members_of_one_text_overlap_as_preview_says(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("algebra", zoo.experts["math"])  # the same text under another name
    plan = filled.plan(["algebra", "math", "code"])
    (warning,) = plan_warnings(plan)
    assert warning.refs == ("algebra@1", "math@1")
    assert warning.figure == filled.preview(["algebra", "math", "code"]).overlap[warning.refs]
    assert "leave one out" in warning.remedy


def test_member_with_few_tokens_is_drowned_by_ridge_routers(filled: Registry) -> None:
    recipe = Recipe(router="ridge", weights={"law": 0.01})
    (warning,) = plan_warnings(filled.plan(["math", "code", "law"], recipe))
    assert warning.refs == ("law@1",)
    assert warning.figure == filled.preview(["math", "code", "law"], recipe).members[1].part
    assert "--weights law=X" in warning.remedy


def test_member_without_tokens_of_its_own_is_drowned(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the least share is: the figure is compared with it."""
    monkeypatch.setattr("registry.composition.context_routing.plan_warnings.LEAST_OWN", 1.1)
    warnings = plan_warnings(filled.plan(["math", "code", "law"]))
    assert [warning.refs for warning in warnings] == [("code@1",), ("law@1",), ("math@1",)]
    members = filled.preview(["math", "code", "law"]).members
    assert [warning.figure for warning in warnings] == [member.accuracy for member in members]
    monkeypatch.setattr("registry.composition.context_routing.plan_warnings.MOST_WORK", 1)
    assert plan_warnings(filled.plan(["math", "code", "law"])) == ()  # too long to predict beside a composition


@pytest.mark.check
def test_compose_prints_them_and_writes_the_same(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.add_expert("algebra", zoo.experts["math"])
    words = ["--home", str(filled.home.path), "compose", "--experts", "algebra,math,code"]
    moe = str(tmp_path / "moe")

    def run(*more: str) -> tuple[str, str]:
        result = CliRunner().invoke(main, [*words, *more])
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    for how in (("--plan",), ("--out", moe)):
        (line,) = [line for line in run(*how)[1].splitlines() if line.startswith("warning: ")]
        assert line.startswith("warning: algebra@1 and math@1 overlap in token counts: ")
        assert "; to mend it: leave one out" in line
    before = files_of(tmp_path / "moe")
    shutil.rmtree(moe)
    assert "warning" not in run("--out", moe, "--quiet")[1]
    assert files_of(tmp_path / "moe") == before
    (warning,) = json.loads(run("--plan", "--json")[0])["warnings"]
    assert warning["refs"] == ["algebra@1", "math@1"]
