"""Proves: `reg reproduce` tells what differs, and exits with 1 where anything does."""

from pathlib import Path

import pytest

from registry import Registry
from tests.cli.conftest import Reg


@pytest.mark.check
def test_reproduce_tells_what_differs(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    moe = tmp_path / "moe"
    plan = filled.compose(["math", "code"], moe)
    told = reg("reproduce", moe).stdout
    assert told.startswith("reproduced: 7 files equal the composition of code@1, math@1 (")
    assert told.endswith(f")  {plan.digest[:12]}\n")
    (moe / "config.json").write_text("{}")
    lines = reg("reproduce", moe, code=1).stdout.splitlines()
    assert lines[0] == "differs: config.json, from byte 1 on"
    assert lines[1].startswith("not reproduced: 1 of 7 files differ from the composition of code@1, math@1 (")
    found = reg.json("reproduce", moe, "--out", tmp_path / "again", code=1)
    assert (found["same"], found["digest"], found["versions"]) == (False, plan.digest, ["code@1", "math@1"])
    assert {file["name"]: file["state"] for file in found["files"]}["config.json"] == "differs"
    assert found["out"] == str(tmp_path / "again")
    filled.opt_out("math", purge=True)
    refused = reg("reproduce", moe, code=1)
    assert refused.stderr.startswith(f"error: {moe} holds math@1, which was opted out at 20")
    assert "next: compose the others without it" in refused.stderr
