"""Generated documentation of the commands: `python -m cli.command_reference`.

It writes docs/cli.md, a table of all commands and their options, and docs/json.md, their output with --json, which git
does not keep.
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from cli.command_names import COMMANDS, first_sentence
from cli.json_schema.commands import ERROR, SCHEMAS, SHOWN_COMPOSITION
from cli.json_schema.notation import table
from cli.main import main
from cli.option_groups import GroupedCommand, grouped

_COMMANDS = """# Commands and their options

`reg --help` lists the commands, and `reg compose --help-all` describes one as this page does. Variables, output and
completion: [use the command line](tasks/command-line.md).

{summary}
## Options

{reference}"""

_FIELDS = """# What commands print with `--json`

Every command takes `--json`, after its name or before it (`reg --json list`), and prints one JSON document on stdout.
Figures that are not finite are `null`. Fields may be added in later versions; none that stands here changes its meaning
without a new major version. `reg schema COMMAND` prints the same as a JSON Schema (draft 2020-12):

```bash
reg schema list
```

Where a command fails, stdout is empty, and the last line on stderr is an error as below; the exit code is the one
without `--json`. `reg verify`, `reg receipt verify` and `reg reproduce` print their document and exit with 1 where
something is not as it should be. `--quiet` keeps everything else off stderr.

{schemas}"""


def pages() -> dict[str, str]:
    """Return the text of each page by its path: usage, description and options of each command; fields of its JSON."""
    summary = ["| command | |", "|---|---|"]
    reference = [_options("Before any command:", main, click.Context(main, info_name="reg"))]
    schemas = [f"## Errors\n\n{table(ERROR)}"]
    for command, own in commands():
        path, text = own.command_path, inspect.cleandoc(command.help or "")
        line = first_sentence(text).replace("|", "\\|")
        summary.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {line} |")
        usage = " ".join([path, *(piece for piece in command.collect_usage_pieces(own) if piece != "[OPTIONS]")])
        lines = command.examples if isinstance(command, GroupedCommand) else ()
        examples = "```console\n" + "".join(f"$ {line}\n" for line in lines) + "```\n\n" if lines else ""
        reference.append(f"## {path}\n\n`{usage}`\n\n{text}\n\n{examples}{_options('', command, own)}")
        schemas.append(f"## {path}\n\n{table(SCHEMAS[path])}")
        if path == "reg show":
            schemas.append(f"With the digest of a composition:\n\n{table(SHOWN_COMPOSITION)}")
    described = "\n".join(part.rstrip() + "\n" for part in reference)
    return {
        "docs/cli.md": _COMMANDS.format(summary="\n".join(summary) + "\n", reference=described),
        "docs/json.md": _FIELDS.format(schemas="\n".join(schemas)),
    }


def write(root: Path) -> None:
    """Write the pages below `root`."""
    for name, text in pages().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


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


def _options(title: str, command: click.Command, context: click.Context) -> str:
    found = grouped(command.params, command.headings) if isinstance(command, GroupedCommand) else []
    if len(found) > 1:
        lines = "".join(f"| **{heading}** | |\n{_rows(own, context)}" for heading, own in found)
    else:
        lines = _rows(command.params, context)
    return f"{title}\n\n| option | |\n|---|---|\n{lines}".lstrip()


def _rows(parameters: Iterable[click.Parameter], context: click.Context) -> str:
    options = [option for option in parameters if isinstance(option, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    return "".join(f"| `{names}` | {' '.join(text.split())} |\n" for names, text in rows)


if __name__ == "__main__":
    write(Path())
