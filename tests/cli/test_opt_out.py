"""Proves: `reg opt-out` lists what it would do before it asks, and --dry-run lists the same and changes nothing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Recipe, Registry
from store.catalog import PushRecord
from tests.conftest import files_of


def run(home: Path, *words: object, code: int = 0, answer: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, words)], input=answer)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def home(filled: Registry, tmp_path: Path) -> Path:
    """A closed registry with a mixture of three, pushed, a ridge one of two, and a dense one with math."""
    plan = filled.compose(["math", "code", "law"], tmp_path / "moe")
    filled.compose(["math", "code"], tmp_path / "pair", Recipe(router="ridge"))
    filled.compose(["math", "law"], tmp_path / "dense", Recipe(to="dense"))
    filled.catalog.record_push(plan.digest, PushRecord("org/moe", "main", "https://hub.test", "c" * 40))
    filled.close()
    return filled.home.path


@pytest.mark.check
def test_dry_run_changes_no_byte_and_says_what_would_be(home: Path, tmp_path: Path) -> None:
    before = files_of(home)
    lines = run(home, "opt-out", "math", "--purge", "--dry-run").stdout.splitlines()
    found = json.loads(run(home, "opt-out", "math", "--purge", "--dry-run", "--json").stdout)
    assert files_of(home) == before
    assert lines[:2] == [
        "would withdraw math@1; no other expert changes by a byte",
        "  3 compositions were made from it:",
    ]
    for name in ("moe", "pair", "dense"):
        assert f"    {tmp_path / name}" in lines
    assert f"    https://hub.test/org/moe  main  commit {'c' * 12}" in lines
    for one in found["compositions"]:
        assert f"    {one['digest'][:12]}  {','.join(one['members'])}" in lines
        assert not [line for line in lines if one["digest"] in line]
    assert any("cannot be undone" in line and "What remains" in line for line in lines)
    assert found["dry_run"] is True
    did = json.loads(run(home, "opt-out", "math", "--purge", "--yes", "--json").stdout)
    assert (did["dry_run"], did["heirs"]) == (False, [])
    for key in ("withdrew", "deleted", "compositions", "pushes", "deleted_arrays", "deleted_bytes", "shared_arrays"):
        assert found[key] == did[key], key  # as foreseen


@pytest.mark.check
def test_heirs_are_the_members_that_remain(home: Path) -> None:
    with Registry(home) as registry:
        would = registry.opt_out("math", dry_run=True)
        assert registry.resolve("math").state == "active"
        members = {composition.digest: tuple(composition.members) for composition in registry.compositions()}
    heirs = {members[one.composition]: one.shares for one in would.heirs}
    assert heirs[("code@1", "math@1")] == {"code": 1.0}
    three = heirs[("code@1", "law@1", "math@1")]
    assert list(three) == ["code", "law"]
    assert sum(three.values()) == pytest.approx(1)
    assert ("law@1", "math@1") not in heirs  # a dense model routes nothing
    with Registry(home) as registry:
        registry.opt_out("math")
        would = registry.opt_out("code", dry_run=True)
    assert would.heirs == ()  # whoever was opted out inherits nothing


@pytest.mark.check
def test_consequences_come_before_the_question(home: Path) -> None:
    asked = run(home, "opt-out", "math", "--purge", answer="n\n", code=1).stderr
    dry = run(home, "opt-out", "math", "--purge", "--dry-run").stdout
    assert asked.startswith(dry + "Withdraw math@1 for good and delete the arrays that only math@1 uses? [y/N]")
    assert "its tokens would go to" in dry
    assert "--purge deletes them" in run(home, "opt-out", "math", "--dry-run").stdout
    quiet = run(home, "-q", "opt-out", "math", answer="n\n", code=1).stderr
    assert quiet.startswith("Withdraw math@1 for good? [y/N]")
    assert "drop one of them" in run(home, "opt-out", "math", "--dry-run", "--receipt", "x", code=2).stderr
