"""Proves: no command prints a line that is wider than the terminal, whatever the names are."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from registry.names.reference import NAME_LIMIT
from tests.conftest import Zoo

WIDTHS = (40, 60, 80, 120)
FIRST, SECOND = ("n" * (NAME_LIMIT - 1) + number for number in "12")


@pytest.mark.check
def test_lines_are_no_wider_than_the_terminal(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.add_expert(FIRST, zoo.experts["code"], tags={"t" * 60: "v" * 60})
    filled.add_expert(SECOND, zoo.experts["math"])
    made = filled.compose([FIRST, SECOND], tmp_path / "moe").digest
    filled.alias(FIRST, "stable")
    text = [word for name in (FIRST, SECOND) for word in ("--data", f"{name}={zoo.test['code']}")]
    small = ["--windows", "1", "--seq-len", "32", "--device", "cpu"]
    commands = [
        ["evaluate", str(tmp_path / "moe"), *text, *small],
        ["list"],
        ["show", FIRST],
        ["show", made[:12]],
        ["compositions"],
        ["log"],
        ["config"],
        ["compose", "--experts", f"{FIRST},{SECOND}", "--plan"],
        ["preview", "--experts", f"{FIRST},{SECOND}"],
    ]
    for words in commands:
        for width in WIDTHS:
            monkeypatch.setattr("cli.output.terminal_width", lambda width=width: width)
            result = CliRunner().invoke(main, ["--home", str(filled.home.path), *words])
            assert result.exit_code == 0, result.output
            lines = click.unstyle(result.stdout).splitlines()
            assert [line for line in lines if len(line) > width] == [], (words[0], width)
    monkeypatch.undo()
    whole = CliRunner().invoke(main, ["--home", str(filled.home.path), "list"]).stdout
    assert f"{FIRST}@1" in whole
    assert "…" not in whole
