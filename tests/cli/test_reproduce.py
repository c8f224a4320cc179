"""Proves: `reg reproduce` tells what differs, and exits with 1 where anything does."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry


@pytest.mark.check
def test_reproduce_tells_what_differs(filled: Registry, tmp_path: Path) -> None:
    def run(*words: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), "reproduce", *map(str, words)])
        assert result.exit_code == code, result.output
        return result

    plan = filled.compose(["math", "code"], tmp_path / "moe")
    told = run(tmp_path / "moe").stdout
    assert told.startswith("reproduced: 7 files equal the composition of code@1, math@1 (")
    assert told.endswith(f")  {plan.digest[:12]}\n")
    (tmp_path / "moe" / "config.json").write_text("{}")
    lines = run(tmp_path / "moe", code=1).stdout.splitlines()
    assert lines[0] == "differs: config.json, from byte 1 on"
    assert lines[1].startswith("not reproduced: 1 of 7 files differ from the composition of code@1, math@1 (")
    found = json.loads(run(tmp_path / "moe", "--out", tmp_path / "again", "--json", code=1).stdout)
    assert (found["same"], found["digest"], found["versions"]) == (False, plan.digest, ["code@1", "math@1"])
    assert {file["name"]: file["state"] for file in found["files"]}["config.json"] == "differs"
    assert found["out"] == str(tmp_path / "again")
    filled.opt_out("math", purge=True)
    refused = run(tmp_path / "moe", code=1)
    assert refused.stderr.startswith(f"error: {tmp_path / 'moe'} holds math@1, which was opted out at 20")
    assert "next: compose the others without it" in refused.stderr
