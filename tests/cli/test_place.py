"""Proves: --home and --database stand anywhere on the line, in any command, with one value in effect."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from store.catalog import NewVersion


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A catalog of one expert without arrays."""
    with Registry(tmp_path / "my home") as registry:
        registry.catalog.add_version(NewVersion("code", "expert", "ab" * 32, {}, 1, ()))
    return tmp_path / "my home"


def run(*words: object, **environment: str) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), env=environment)


@pytest.mark.sqlite
def test_home_stands_before_or_after_the_command(home: Path) -> None:
    expected = run("--home", home, "list").stdout
    assert "code@1" in expected
    assert run("list", "--home", home).stdout == expected
    assert run("list", f"--home={home}", "--kind", "expert").stdout == expected
    assert run("--home", home, "list", "--home", home).stdout == expected
    assert run("list", REG_HOME=str(home)).stdout == expected
    assert run("list", "--home", home, REG_HOME="/nowhere").stdout == expected
    for words in (("--home", home, "config"), ("config", "--home", home)):
        (line,) = [line for line in run(*words).stdout.splitlines() if line.startswith("home ")]
        assert line.split()[-1] == "--home"


@pytest.mark.sqlite
def test_database_stands_after_a_command_of_a_group(home: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{home / 'catalog.sqlite'}"
    other = tmp_path / "other"
    other.mkdir()
    expected = run("--home", home, "db", "current").stdout
    assert run("db", "current", "--home", other, "--database", url).stdout == expected
    assert run("db", "--home", other, "current", "--database", url).stdout == expected


def test_two_homes_and_an_empty_one_are_refused() -> None:
    for line in ("--home a list --home b", "--home a --home b list", "list --home a --home b"):
        result = run(*line.split())
        assert result.exit_code == 2, line
        assert result.stderr.startswith("error: --home is given twice, as 'a' and as 'b'\n  next: reg "), line
    assert run("list", "--home", "").stderr == "error: --home is empty\n  next: reg list --help\n"
