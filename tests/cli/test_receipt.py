"""Proves: `reg opt-out --receipt` writes a receipt, and `reg receipt verify` exits with 1 where it does not hold."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry


@pytest.mark.check
def test_receipt_is_written_and_checked(filled: Registry, tmp_path: Path) -> None:
    def run(*words: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, words)])
        assert result.exit_code == code, result.output
        return result

    file = tmp_path / "receipt.json"
    filled.compose(["math", "code"], tmp_path / "moe")
    filled.compose(["code"], tmp_path / "other")
    asked = run("opt-out", "math", "--purge", "--receipt", file, code=1)
    assert f"reg --home {filled.home.path} opt-out math --purge --receipt {file} --yes" in asked.stderr
    assert not file.exists()
    told = run("opt-out", "math", "--purge", "--receipt", file, "--yes").stdout.splitlines()
    assert told[-1] == f"  receipt: {file}"
    arrays = len(json.loads(file.read_bytes())["deleted"]["arrays"])
    rest = f"math@1 withdrawn, {arrays} arrays deleted, 1 composition affected"
    assert run("receipt", "verify", file, "--folder", tmp_path / "other").stdout == (
        f"receipt confirmed: {rest}, 1 folder checked\n"
    )
    lines = run("receipt", "verify", file, "--folder", tmp_path / "moe", code=1).stdout.splitlines()
    assert lines[0].startswith(f"problem: {tmp_path / 'moe'} holds math@1: ")
    assert lines[1] == f"1 problem: {rest}, 1 folder checked"
    found = json.loads(run("receipt", "verify", file, "--json").stdout)
    assert found == {"receipt": json.loads(file.read_bytes()), "problems": [], "remedies": [], "notes": []}
    refused = run("opt-out", "code", "--receipt", file, "--yes", code=1)
    assert refused.stderr.startswith(f"error: {file} exists, and receipts are never overwritten")
    assert filled.resolve("code").state == "active"
