"""Proves: help lists every command by what it is for, whole, and every command's help ends with lines that parse."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.command_reference import commands
from cli.help_jobs import ALIASES, JOBS
from cli.main import COMMANDS, main
from cli.option_groups import GroupedCommand
from cli.summaries import SUMMARIES
from registry import Registry
from tests.test_docs import parse

EVERY = {own.command_path: (command, own) for command, own in commands()}


def shown(*words: str) -> str:
    result = CliRunner().invoke(main, [*words])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_every_command_stands_in_one_job() -> None:
    assert sorted(name for names in JOBS.values() for name in names) == sorted(COMMANDS)


def test_help_lists_commands_by_job_with_whole_summaries() -> None:
    text = shown("--help")
    places = [text.index(f"\n{job}:\n") for job in JOBS]
    assert places == sorted(places)
    assert "..." not in text.replace("COMMAND [ARGS]...", "")
    assert max(map(len, text.splitlines())) <= 80
    flat = "".join(text.split())
    assert all("".join(summary.split()) in flat for summary in SUMMARIES.values())
    assert "reg demo" in text[: places[0]]


def test_help_of_a_group_is_whole() -> None:
    assert "create it if it does not exist." in " ".join(shown("db", "--help").split())
    assert "..." not in shown("db", "--help").replace("COMMAND [ARGS]...", "")


@pytest.mark.parametrize("path", EVERY)
def test_help_ends_with_examples_that_parse(path: str) -> None:
    command, own = EVERY[path]
    assert isinstance(command, GroupedCommand)
    assert 1 <= len(command.examples) <= 3
    end = command.get_help(own).partition("\nExamples:\n")[2]
    assert end.splitlines() == [f"  {line}" for line in command.examples]
    of_command = [line for line in command.examples if re.match(rf"{path}( |$)|reg --\w+ \S+ {path[4:]}( |$)", line)]
    assert of_command or path == "reg completion"
    for line in command.examples:
        assert len(line) <= 78
        if line.startswith("reg "):
            parse(line)


def test_examples_do_not_only_look_like_commands() -> None:
    with pytest.raises(click.ClickException):
        parse("reg compose --experts code,math --output moe/")


@pytest.mark.parametrize(("short", "name"), ALIASES.items())
def test_a_shorter_name_is_the_command(tmp_path: Path, short: str, name: str) -> None:
    assert shown(short, "--help") == shown(name, "--help")
    assert re.search(rf"^  {name}, {short} +\w", shown("--help"), re.MULTILINE)
    assert not re.search(rf"`reg {short}[` ]", Path("docs/cli.md").read_text(encoding="utf-8"))
    assert main.get_command(click.Context(main), short) is main.get_command(click.Context(main), name)


def test_a_shorter_name_works(filled: Registry) -> None:
    run = CliRunner().invoke
    home = ["--home", str(filled.home.path)]
    assert run(main, [*home, "ls"]).stdout == run(main, [*home, "list"]).stdout
    assert run(main, [*home, "rm", "math", "--yes", "--quiet"]).stdout == "math@1\n"
    assert run(main, [*home, "add", "x", "absent"]).stderr == run(main, [*home, "add-expert", "x", "absent"]).stderr


def test_a_misspelt_shorter_name_is_answered() -> None:
    assert "did you mean 'ls'?" in CliRunner().invoke(main, ["lss"]).stderr
    assert "did you mean 'rm'?" in CliRunner().invoke(main, ["rmm"]).stderr


INVENTED = re.compile(
    r"\b(told|foretold|anew|see there)\b|--[a-z-]+ (is|are) of\b|\bwhat \w+ \w+ is under\b|^Of [a-z]", re.I
)
"""Words of this project's own where plain English will do."""


@pytest.mark.parametrize("path", EVERY)
def test_help_is_in_plain_words(path: str) -> None:
    command, _ = EVERY[path]
    texts = [command.help or "", *(str(one.help) for one in command.params if isinstance(one, click.Option))]
    assert [text for text in texts if INVENTED.search(text)] == []
