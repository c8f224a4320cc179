"""Proves: `reg bom` says what it wrote and what is unknown, and exits 1 with one line to type for everything else."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import PAIR, Reg

pytest.importorskip("cyclonedx")


def test_what_was_written_and_what_is_unknown_is_told(
    reg: Reg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moe, file = tmp_path / "moe", tmp_path / "moe" / "bom.cdx.json"
    reg("compose", *PAIR, "--trunk", "mean", "--out", moe)
    shown = reg("bom", moe)
    assert shown.stdout.splitlines()[0].startswith(f"wrote {file}  SHA-256 ")
    assert "  unknown: license of base, code, math and 1 more" in shown.stdout
    assert f"sign {moe} --key KEY" in shown.stderr
    assert reg("bom", moe, "--quiet").stdout == f"{file}\n"
    found, other = reg.json("bom", moe), tmp_path / "other.json"
    assert json.loads(file.read_text())["serialNumber"] == found["serial_number"]
    assert reg.json("bom", moe, "--out", other)["sha256"] == found["sha256"]
    assert "replace it: --force" in reg("bom", moe, "--out", other, code=1).stderr
    reg("bom", moe, "--out", other, "--force")
    reg("opt-out", "code", "--yes")
    assert "warning:" in reg("bom", moe).stderr
    assert "was not composed by this program" in reg("bom", tmp_path, code=1).stderr
    monkeypatch.setitem(sys.modules, "cyclonedx.validation.json", None)
    missing = reg("bom", moe, code=1).stderr
    assert "error: bills of materials need cyclonedx-python-lib" in missing
    assert "next: run: pip install 'expert-registry[bom]'" in missing
