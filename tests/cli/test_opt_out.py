"""Proves: `reg opt-out` lists what it would do before it asks, and --dry-run lists the same and changes nothing.

It writes a receipt, and `reg receipt verify` exits with 1 where that does not hold.
"""

import json
from pathlib import Path

import pytest

from registry import Recipe, Registry
from store.catalog import PushRecord
from tests.cli.conftest import Reg
from tests.conftest import files_of


@pytest.fixture
def used(filled: Registry, tmp_path: Path) -> Reg:
    """The program on a closed registry with a mixture of three, pushed, a ridge one of two, and a dense model."""
    plan = filled.compose(["math", "code", "law"], tmp_path / "moe")
    filled.compose(["math", "code"], tmp_path / "pair", Recipe(router="ridge"))
    filled.compose(["math", "law"], tmp_path / "dense", Recipe(to="dense"))
    filled.catalog.record_push(plan.digest, PushRecord("org/moe", "main", "https://hub.test", "c" * 40))
    filled.close()
    return Reg(filled.home.path)


@pytest.mark.check
def test_consequences_come_before_the_question_and_a_dry_run_changes_no_byte(used: Reg, tmp_path: Path) -> None:
    before = files_of(used.home)
    asked = used("opt-out", "math", "--purge", input="n\n", code=1).stderr
    dry = used("opt-out", "math", "--purge", "--dry-run").stdout
    assert asked.startswith(dry + "Withdraw math@1 for good and delete the arrays that only math@1 uses? [y/N]")
    assert "its tokens would go to" in dry
    assert "--purge deletes them" in used("opt-out", "math", "--dry-run").stdout
    quiet = used("-q", "opt-out", "math", input="n\n", code=1).stderr
    assert quiet.startswith("Withdraw math@1 for good? [y/N]")
    assert "drop one of them" in used("opt-out", "math", "--dry-run", "--receipt", "x", code=2).stderr
    lines = dry.splitlines()
    found = used.json("opt-out", "math", "--purge", "--dry-run")
    assert files_of(used.home) == before
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
    did = used.json("opt-out", "math", "--purge", "--yes")
    assert (did["dry_run"], did["heirs"]) == (False, [])
    for key in ("withdrew", "deleted", "compositions", "pushes", "deleted_arrays", "deleted_bytes", "shared_arrays"):
        assert found[key] == did[key], key  # as foreseen


def test_aliases_that_stay_or_go_are_named(filled: Registry) -> None:
    reg = Reg(filled.home.path)
    filled.alias("math", "stable", protect=True)
    filled.alias("math", "best")
    line = "  aliases on what is withdrawn, until reg alias moves them: math@best, math@stable"
    assert line in reg("opt-out", "math", "--dry-run").stdout.splitlines()
    assert reg.json("opt-out", "math", "--dry-run")["aliases"] == ["math@best", "math@stable"]
    assert line in reg("opt-out", "math", "--yes").stdout.splitlines()
    assert (
        "  would delete aliases math@best, math@stable"
        in reg("opt-out", "math", "--purge", "--dry-run").stdout.splitlines()
    )
    assert "  deleted aliases math@best, math@stable" in reg("opt-out", "math", "--purge", "--yes").stdout.splitlines()
    assert "aliases" not in reg("opt-out", "law", "--yes").stdout
    assert (filled.resolve("math", states=("purged",)).aliases, filled.verify().problems) == ((), ())


@pytest.mark.check
def test_heirs_are_the_members_that_remain(used: Reg) -> None:
    with Registry(used.home) as registry:
        would = registry.opt_out("math", dry_run=True)
        assert registry.resolve("math").state == "active"
        members = {composition.digest: tuple(composition.members) for composition in registry.compositions()}
    heirs = {members[one.composition]: one.shares for one in would.heirs}
    assert heirs[("code@1", "math@1")] == {"code": 1.0}
    three = heirs[("code@1", "law@1", "math@1")]
    assert list(three) == ["code", "law"]
    assert sum(three.values()) == pytest.approx(1)
    assert ("law@1", "math@1") not in heirs  # a dense model routes nothing
    with Registry(used.home) as registry:
        registry.opt_out("math")
        would = registry.opt_out("code", dry_run=True)
    assert would.heirs == ()  # whoever was opted out inherits nothing


@pytest.mark.check
def test_receipt_is_written_and_checked(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    filled.compose(["math", "code"], tmp_path / "moe")
    filled.compose(["code"], tmp_path / "other")
    asked = reg("opt-out", "math", "--purge", "--receipt", file, code=1)
    assert f"reg --home {reg.home} opt-out math --purge --receipt {file} --yes" in asked.stderr
    assert not file.exists()
    told = reg("opt-out", "math", "--purge", "--receipt", file, "--yes").stdout.splitlines()
    assert told[-1] == f"  receipt: {file}"
    receipt = json.loads(file.read_bytes())
    rest = f"math@1 withdrawn, {len(receipt['deleted']['arrays'])} arrays deleted, 1 composition affected"
    other = reg("receipt", "verify", file, "--folder", tmp_path / "other").stdout
    assert other == f"receipt confirmed: {rest}, 1 folder checked\n"
    lines = reg("receipt", "verify", file, "--folder", tmp_path / "moe", code=1).stdout.splitlines()
    assert lines[0].startswith(f"problem: {tmp_path / 'moe'} holds math@1: ")
    assert lines[1] == f"1 problem: {rest}, 1 folder checked"
    assert reg.json("receipt", "verify", file) == {"receipt": receipt, "problems": [], "remedies": [], "notes": []}
    refused = reg("opt-out", "code", "--receipt", file, "--yes", code=1)
    assert refused.stderr.startswith(f"error: {file} exists, and receipts are never overwritten")
    assert filled.resolve("code").state == "active"
