"""Proves: the demo runs end to end, in small, and its folder is only ever its own."""

from pathlib import Path

import pytest

from registry.demo import DemoResult, run, run_demo
from registry.errors import OutputError


def test_demo_shows_the_promises(demo_result: DemoResult) -> None:
    result = demo_result
    assert result.domains == ("code", "english", "math")
    assert [row.name for row in result.rows] == [
        "base base@1",
        "expert code",
        "expert english",
        "expert math",
        "average",
        "moe",
    ]
    assert len(result.orders) == 3
    assert len(set(result.orders.values())) == 1
    assert result.opted_out == result.never_registered
    assert result.opted_out != next(iter(result.orders.values()))
    kept = sorted(path.name for path in result.folder.iterdir())
    assert kept == ["checkpoints", "demo.json", "moe", "registry", "text"]


def test_earlier_demo_is_replaced(tmp_path: Path) -> None:
    run._prepare(tmp_path / "demo")
    (tmp_path / "demo" / "moe").mkdir()
    run._prepare(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["demo.json"]


def test_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match="was not made by the demo"):
        run_demo(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
