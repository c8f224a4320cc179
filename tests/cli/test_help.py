"""Proves: help lists every command by what it is for, whole, and every command's help is in plain words.

It has each option once, under headings where there are many, and ends with lines that parse. The most needed options
come first; the rest, and those of one output, a word away.
"""

import re

import click
import pytest
from click.testing import CliRunner

from cli.command_names import ALIASES, COMMANDS, JOBS, summary_of
from cli.command_reference import commands, pages
from cli.main import main
from cli.option_groups import COMMON, FEW, MOST, RECIPE, GroupedCommand, grouped
from registry.composition.recipe.fields import FIELDS, misplaced
from tests.cli.conftest import Reg
from tests.test_docs import parse

EVERY = {own.command_path: (command, own) for command, own in commands()}


def shown(*words: str) -> str:
    result = CliRunner().invoke(main, [*words])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_help_lists_commands_by_job_with_whole_summaries() -> None:
    assert sorted(name for names in JOBS.values() for name in names) == sorted(COMMANDS)
    text = shown("--help")
    places = [text.index(f"\n{job}:\n") for job in JOBS]
    assert places == sorted(places)
    assert "..." not in text.replace("COMMAND [ARGS]...", "")
    assert max(map(len, text.splitlines())) <= 80
    flat = "".join(text.split())
    assert all("".join(summary_of(name).split()) in flat for name in COMMANDS)
    assert "reg demo" in text[: places[0]]
    group = shown("db", "--help")
    assert "create it if it does not exist." in " ".join(group.split())
    assert "..." not in group.replace("COMMAND [ARGS]...", "")


INVENTED = re.compile(
    r"\b(told|foretold|anew|see there)\b|--[a-z-]+ (is|are) of\b|\bwhat \w+ \w+ is under\b|^Of [a-z]", re.I
)
"""Words of this project's own where plain English will do."""


@pytest.mark.parametrize("path", EVERY)
def test_help_is_in_plain_words_and_ends_with_examples_that_parse(path: str) -> None:
    command, own = EVERY[path]
    assert isinstance(command, GroupedCommand)
    options = [one for one in command.params if isinstance(one, click.Option)]
    texts = [command.help or "", *(one.help or "" for one in options)]
    assert all(texts)
    assert [text for text in texts if INVENTED.search(text)] == []
    help_text = command.get_help(own)
    assert "--json" in help_text
    assert {"home", "database"} <= {one.name for one in options}
    assert "--database" not in help_text  # the help of the program has it
    assert 1 <= len(command.examples) <= 3
    end = help_text.partition("\nExamples:\n")[2]
    assert end.splitlines() == [f"  {line}" for line in command.examples]
    of_command = [line for line in command.examples if re.match(rf"{path}( |$)|reg --\w+ \S+ {path[4:]}( |$)", line)]
    assert of_command or path == "reg completion"
    for line in command.examples:
        assert len(line) <= 78
        if line.startswith("reg "):
            parse(line)


@pytest.mark.parametrize("path", EVERY)
def test_every_option_stands_once_under_headings_where_there_are_many(path: str) -> None:
    command, own = EVERY[path]
    assert isinstance(command, GroupedCommand)
    visible = [one for one in command.get_params(own) if isinstance(one, click.Option) and not one.hidden]
    text = shown(*path.split()[1:], "--help-all")
    groups = dict(grouped(command.get_params(own), command.headings))
    shown_once = sorted(one.opts[0] for options in groups.values() for one in options)
    assert shown_once == sorted(one.opts[0] for one in visible)
    assert all(f"\n  {name}" in text for name in shown_once)
    many = len(visible) > FEW
    assert ("\nOptions:\n" in text) is not many
    if many:
        assert {option.opts[-1] for option in groups.get(COMMON, [])} >= {"--json", "--quiet", "--help"}
        assert len(groups) > 2
        places = [text.index(f"\n{heading}:\n") for heading in groups]  # in the order of a command's work
        assert places == sorted(places)
    without_recipe = path in ("reg train-expert", "reg audit-extraction")
    composes = bool({"trunk", "top_k", "alpha"} & {one.name for one in visible}) and not without_recipe
    assert (many and command.headings is RECIPE) is composes


@pytest.mark.parametrize("path", EVERY)
def test_help_lists_the_most_needed_options_and_how_to_see_the_rest(path: str) -> None:
    command, own = EVERY[path]
    assert isinstance(command, GroupedCommand)
    short, text = command.shown(own), command.get_help(own)
    visible = [one for one in command.get_params(own) if isinstance(one, click.Option) and not one.hidden]
    assert len(short) <= MOST
    assert all((f"\n  {', '.join(one.opts)} " in text) is (one in short) for one in visible if not one.secondary_opts)
    left = sum("--help-all" not in one.opts for one in visible) - len(short)
    assert (f"\n{left} more: {path} --help-all" in text) is (left > 0)
    assert ("of one output alone: reg help compose dense" in text) is (path == "reg compose")


@pytest.mark.parametrize("output", FIELDS["to"].choices)
def test_help_of_an_output_has_the_options_that_its_recipes_take(output: str) -> None:
    text = shown("help", "compose", output)
    fitting = {name: {other: methods[0] for other, methods in one.only_with.items()} for name, one in FIELDS.items()}
    taken = [name for name, values in fitting.items() if misplaced(name, values | {"to": output}) is None]
    assert [name for name, one in FIELDS.items() if re.search(rf"^  {one.option}[ /]", text, re.MULTILINE)] == taken
    assert ("--like FILE" in text, "--public NAME" in text) == (output == "dense", output == "moe")
    assert all(f"\n  --{name} " in text for name in ("experts", "out", "save-recipe", "push", "ray"))


@pytest.mark.parametrize(("short", "name"), ALIASES.items())
def test_a_shorter_name_is_the_command(short: str, name: str) -> None:
    assert shown(short, "--help") == shown(name, "--help")
    assert re.search(rf"^  {name}, {short} +\w", shown("--help"), re.MULTILINE)
    assert not re.search(rf"`reg {short}[` ]", pages()["docs/cli.md"])
    assert main.get_command(click.Context(main), short) is main.get_command(click.Context(main), name)
    assert f"did you mean '{short}'?" in CliRunner().invoke(main, [short + short[-1]]).stderr


def test_a_shorter_name_works(reg: Reg) -> None:
    assert reg("ls").stdout == reg("list").stdout
    assert reg("rm", "math", "--yes", "--quiet").stdout == "math@1\n"
    assert reg("add", "x", "absent", code=1).stderr == reg("add-expert", "x", "absent", code=1).stderr
