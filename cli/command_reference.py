"""Generated documentation of the commands: `python -m cli.command_reference [PAGE…]`.

The text between marks in a page is replaced: in docs/cli.md by a table of all commands and their options, in
docs/json.md by their output with --json.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from cli.command_names import COMMANDS, first_sentence
from cli.json_schema.commands import ERROR, SCHEMAS, SHOWN_COMPOSITION
from cli.json_schema.notation import table
from cli.main import main
from cli.option_groups import GroupedCommand, grouped

PAGES = ("docs/cli.md", "docs/json.md")
"""The pages that have marks."""


def summary() -> str:
    """Return a Markdown table of all commands, one line each, with links to their sections."""
    rows = ["| command | |", "|---|---|"]
    for command, own in commands():
        anchor = own.command_path.replace(" ", "-")
        line = first_sentence(command.help or "").replace("|", "\\|")
        rows.append(f"| [`{own.command_path}`](#{anchor}) | {line} |")
    return "\n".join(rows) + "\n"


def reference() -> str:
    """Return the reference as Markdown: usage, description and options of each command."""
    parts = [_options("Before any command:", main, click.Context(main, info_name="reg"))]
    for command, own in commands():
        text = inspect.cleandoc(command.help or "")
        options, examples = _options("", command, own), _examples(command)
        parts.append(f"## {own.command_path}\n\n`{_usage(command, own)}`\n\n{text}\n\n{examples}{options}")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def schemas() -> str:
    """Return the fields of every command's --json output, as Markdown."""
    parts = [f"## Errors\n\n{table(ERROR)}"]
    for _, own in commands():
        parts.append(f"## {own.command_path}\n\n{table(SCHEMAS[own.command_path])}")
        if own.command_path == "reg show":
            parts.append(f"With the digest of a composition:\n\n{table(SHOWN_COMPOSITION)}")
    return "\n".join(parts)


PARTS: dict[str, Callable[[], str]] = {"commands": summary, "CLI reference": reference, "fields": schemas}
"""Name of a part of a page → the function that writes it."""


def marks(name: str) -> tuple[str, str]:
    """Return the lines that begin and end the part `name`."""
    return f"<!-- {name}: written by `make reference` -->\n", f"<!-- end of the {name} -->\n"


def written(page: str) -> str:
    """Return `page` with the text between marks replaced.

    Raises:
        ValueError: the page has no marks, or only one of a pair.
    """
    has_marks = False
    for name, make in PARTS.items():
        begin, end = marks(name)
        if begin not in page and end not in page:
            continue
        before, first, rest = page.partition(begin)
        _, last, after = rest.partition(end)
        if not (first and last):
            raise ValueError(f"the page has only one of the two marks of the {name}")
        page, has_marks = f"{before}{begin}\n{make()}\n{end}{after}", True
    if not has_marks:
        raise ValueError("the page has no marks")
    return page


def commands(
    group: click.Group = main, context: click.Context | None = None
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every command that is not a group, with its context, in the order of `COMMANDS`."""
    parent = context or click.Context(main, info_name="reg")
    for name in COMMANDS if group is main else group.commands:
        command = group.get_command(parent, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from commands(command, own)
        else:
            yield command, own


def _usage(command: click.Command, own: click.Context) -> str:
    pieces = [piece for piece in command.collect_usage_pieces(own) if piece != "[OPTIONS]"]
    return " ".join([own.command_path, *pieces])


def _options(title: str, command: click.Command, context: click.Context) -> str:
    found = grouped(command.params, command.headings) if isinstance(command, GroupedCommand) else []
    if len(found) > 1:
        lines = "".join(f"| **{heading}** | |\n{_rows(own, context)}" for heading, own in found)
    else:
        lines = _rows(command.params, context)
    return f"{title}\n\n| option | |\n|---|---|\n{lines}".lstrip()


def _examples(command: click.Command) -> str:
    lines = command.examples if isinstance(command, GroupedCommand) else ()
    return "```console\n" + "".join(f"$ {line}\n" for line in lines) + "```\n\n" if lines else ""


def _rows(parameters: Iterable[click.Parameter], context: click.Context) -> str:
    options = [option for option in parameters if isinstance(option, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    return "".join(f"| `{names}` | {' '.join(text.split())} |\n" for names, text in rows)


if __name__ == "__main__":
    for target in map(Path, sys.argv[1:] or PAGES):
        target.write_text(written(target.read_text(encoding="utf-8")), encoding="utf-8")
