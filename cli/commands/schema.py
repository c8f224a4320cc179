"""reg schema."""

from typing import Any

import click

from cli.json_schema.commands import ERROR, SCHEMAS, schema_of
from cli.option_groups import GroupedCommand
from cli.output import as_json, print_json
from registry import composition
from registry.errors import NotFoundError
from registry.names.suggest import suggest

RECIPE = "recipe"
"""Printed as a schema though it is not a command."""


@click.command(cls=GroupedCommand, examples=("reg schema list", "reg schema receipt verify", "reg schema recipe"))
@click.argument("words", metavar="[COMMAND]", nargs=-1)
@as_json
def schema(words: tuple[str, ...], as_json: bool) -> None:
    """Print the JSON Schema of COMMAND's output with --json, or of every command's.

    COMMAND is written without reg, for example receipt verify. The word recipe prints the schema of recipe files, which
    reg compose --recipe reads. The schema is JSON with or without --json.
    """
    if words == (RECIPE,):
        print_json(composition.recipe_schema())
        return
    command = " ".join(("reg", *words)).removeprefix("reg reg")
    if words and command not in SCHEMAS:
        known = [name.removeprefix("reg ") for name in SCHEMAS] + [RECIPE]
        raise NotFoundError(f"there is no command {' '.join(words)!r}{suggest(' '.join(words), known)}", "reg --help")
    every: dict[str, Any] = {name: schema_of(name) for name in SCHEMAS} | {"error": ERROR}
    print_json(schema_of(command) if words else every)
