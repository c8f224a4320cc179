"""Proves: --home and --database stand anywhere on the line, in any command, with one value in effect."""

from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner, Result

from cli.main import COMMANDS, COMPLETING, main
from registry import Registry
from store.catalog import NewVersion


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of one expert without arrays. Nothing writes to it."""
    place = tmp_path_factory.mktemp("place") / "my home"
    with Registry(place) as registry:
        registry.catalog.add_version(NewVersion("code", "expert", "ab" * 32, {}, 1, ()))
    return place


def run(*words: object, **environment: str) -> Result:
    unset: dict[str, str | None] = {"REG_HOME": None, "REG_DATABASE": None}
    return CliRunner().invoke(main, list(map(str, words)), env={**unset, **environment})


def test_home_stands_before_or_after_the_command(home: Path) -> None:
    expected = run("--home", home, "list").stdout
    assert "code@1" in expected
    assert run("list", "--home", home).stdout == expected
    assert run("list", f"--home={home}", "--kind", "expert").stdout == expected
    assert run("--home", home, "list", "--home", home).stdout == expected
    assert run("list", REG_HOME=str(home)).stdout == expected
    assert run("list", "--home", home, REG_HOME="/nowhere").stdout == expected


def test_database_stands_after_a_command_of_a_group(home: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{home / 'catalog.sqlite'}"
    expected = run("--home", home, "db", "current").stdout
    assert run("db", "current", "--home", tmp_path, "--database", url).stdout == expected
    assert run("db", "--home", tmp_path, "current", "--database", url).stdout == expected


@pytest.mark.parametrize(
    "words",
    [("--home", "a", "list", "--home", "b"), ("--home", "a", "--home", "b", "list"),
     ("list", "--home", "a", "--home", "b")],
    ids=" ".join,
)  # fmt: skip
def test_two_homes_are_refused(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --home is given twice, as 'a' and as 'b'\n  next: reg ")


def test_empty_home_after_a_command_is_refused() -> None:
    assert run("list", "--home", "").stderr == "error: --home is empty\n  next: reg list --help\n"


def test_settings_name_the_option_wherever_it_stands(home: Path) -> None:
    for words in (("--home", home, "config"), ("config", "--home", home)):
        (line,) = [line for line in run(*words).stdout.splitlines() if line.startswith("home ")]
        assert line.split()[-1] == "--home"


def test_home_after_a_command_completes_names(home: Path) -> None:
    made = get_completion_class("zsh")
    assert made is not None
    found = made(main, {}, "reg", COMPLETING).get_completions(["show", "--home", str(home)], "c")
    assert [item.value for item in found] == ["code"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_it_and_no_help_repeats_it(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert {"home", "database"} <= {param.name for param in command.params}
    assert "--database" not in command.get_help(click.Context(command))
