"""The CLI reference in the README, written from the commands themselves: `python -m cli.reference README.md`."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

BEGIN = "<!-- CLI reference: written by `make reference` -->\n"
END = "<!-- end of the CLI reference -->\n"


def reference() -> str:
    """Return the reference as Markdown: a line of usage, what it does, and its options, for each command."""
    from cli.main import COMMANDS, main

    context = click.Context(main, info_name="reg")
    parts = [_options("Before any command:", main, context)]
    for command, own in _commands(main, context, COMMANDS):
        pieces = [piece for piece in command.collect_usage_pieces(own) if piece != "[OPTIONS]"]
        usage = " ".join([own.command_path, *pieces])
        parts.append(f"#### `{usage}`\n\n{inspect.cleandoc(command.help or '')}\n\n{_options('', command, own)}")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def written(page: str) -> str:
    """Return `page` with the reference between its two marks made anew.

    Raises:
        ValueError: the page does not have both marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the page has no marks for the CLI reference")
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


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


def _options(title: str, command: click.Command, context: click.Context) -> str:
    options = [option for option in command.params if isinstance(option, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    table = "".join(f"| `{names}` | {' '.join(text.split())} |\n" for names, text in rows)
    return f"{title}\n\n| option | |\n|---|---|\n{table}".lstrip()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(written(target.read_text(encoding="utf-8")), encoding="utf-8")
