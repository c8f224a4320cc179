"""What the documents say of the commands, written from the commands themselves: `python -m cli.reference [PAGE…]`.

The text between the marks of a page is generated: in docs/cli.md a table of all commands and then each with its
options, in docs/json.md what each prints with --json.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

PAGES = ("docs/cli.md", "docs/json.md")
"""The pages that have marks."""


def summary() -> str:
    """Return every command with what it does in a line, as a Markdown table that links to its section."""
    rows = ["| command | |", "|---|---|"]
    for command, own in commands():
        anchor = own.command_path.replace(" ", "-")
        rows.append(f"| [`{own.command_path}`](#{anchor}) | {_line(command)} |")
    return "\n".join(rows) + "\n"


def reference() -> str:
    """Return the reference as Markdown: a line of usage, what it does, and its options, for each command."""
    from cli.main import main

    parts = [_options("Before any command:", main, click.Context(main, info_name="reg"))]
    for command, own in commands():
        text = inspect.cleandoc(command.help or "")
        parts.append(f"## {own.command_path}\n\n`{_usage(command, own)}`\n\n{text}\n\n{_options('', command, own)}")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def schemas() -> str:
    """Return what every command prints with --json, field by field, as Markdown."""
    from cli.json_schema.commands import ERROR, SCHEMAS
    from cli.json_schema.fields import table
    from cli.json_schema.objects import SHOWN_COMPOSITION

    parts = [f"## Errors\n\n{table(ERROR)}"]
    for _, own in commands():
        parts.append(f"## {own.command_path}\n\n{table(SCHEMAS[own.command_path])}")
        if own.command_path == "reg show":
            parts.append(f"With the digest of a composition:\n\n{table(SHOWN_COMPOSITION)}")
    return "\n".join(parts)


PARTS: dict[str, Callable[[], str]] = {"commands": summary, "CLI reference": reference, "fields": schemas}
"""What can stand between marks, by their name."""


def marks(name: str) -> tuple[str, str]:
    """Return the lines between which a part of this name stands."""
    return f"<!-- {name}: written by `make reference` -->\n", f"<!-- end of the {name} -->\n"


def written(page: str) -> str:
    """Return `page` with what stands between marks made anew.

    Raises:
        ValueError: the page has no marks, or only one of a pair.
    """
    found = False
    for name, make in PARTS.items():
        begin, end = marks(name)
        if begin not in page and end not in page:
            continue
        before, first, rest = page.partition(begin)
        _, last, after = rest.partition(end)
        if not (first and last):
            raise ValueError(f"the page has only one of the two marks of the {name}")
        page, found = f"{before}{begin}\n{make()}\n{end}{after}", True
    if not found:
        raise ValueError("the page has no marks for anything that is written from the commands")
    return page


def commands() -> Iterator[tuple[click.Command, click.Context]]:
    """Give every command that does something, with a context of its own, in the order of `COMMANDS`."""
    from cli.main import COMMANDS, main

    yield from _commands(main, click.Context(main, info_name="reg"), COMMANDS)


def _commands(
    group: click.Group, context: click.Context, names: Iterable[str]
) -> Iterator[tuple[click.Command, click.Context]]:
    for name in names:
        command = group.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, own, command.commands)
        else:
            yield command, own


def _usage(command: click.Command, own: click.Context) -> str:
    pieces = [piece for piece in command.collect_usage_pieces(own) if piece != "[OPTIONS]"]
    return " ".join([own.command_path, *pieces])


def _line(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    text = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0].replace("|", "\\|")


def _options(title: str, command: click.Command, context: click.Context) -> str:
    options = [option for option in command.params if isinstance(option, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    table = "".join(f"| `{names}` | {' '.join(text.split())} |\n" for names, text in rows)
    return f"{title}\n\n| option | |\n|---|---|\n{table}".lstrip()


if __name__ == "__main__":
    for target in map(Path, sys.argv[1:] or PAGES):
        target.write_text(written(target.read_text(encoding="utf-8")), encoding="utf-8")
