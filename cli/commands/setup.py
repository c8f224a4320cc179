"""Commands about the program itself: config, completion, schema."""

from typing import Any

import click

from cli.main import COMPLETING
from cli.option_groups import command
from cli.options import Choice
from cli.output import print_json, print_table, printed_json
from cli.session import Session, pass_session
from cli.shell_completion import SHELLS, script
from registry import composition
from registry.errors import NotFoundError
from registry.names.suggest import suggest


@command("reg config", "reg --home team/registry config")
@pass_session
def config(session: Session) -> None:
    """Print all settings (home, database, arrays, Hub, device) with their sources, and the versions of packages.

    A source is an option, an environment variable, a file or the default. Passwords and tokens are not shown, only that
    they are set. Nothing is created.
    """
    from registry.maintenance.environment import configuration, versions

    settings, installed = configuration(session.home, session.database, session.arrays, given=session.typed), versions()
    shown = {each.name.lower().replace(" ", "_"): {"value": each.value, "source": each.source} for each in settings}
    if printed_json({"settings": shown, "versions": installed}):
        return
    print_table(("setting", "value", "source"), [(each.name, each.value, each.source) for each in settings])
    click.echo()
    print_table(("package", "version"), list(installed.items()))


@command("source <(reg completion bash)", "reg completion fish > ~/.config/fish/completions/reg.fish")
@click.argument("shell", type=Choice(SHELLS), metavar="SHELL")
def completion(shell: str) -> None:
    """Print the script with which SHELL (bash, zsh or fish) completes commands, options and registered names.

    In bash or zsh, for one session or in ~/.bashrc or ~/.zshrc: source <(reg completion bash). In fish:
    reg completion fish > ~/.config/fish/completions/reg.fish
    """
    text = script(shell, click.get_current_context().find_root().command, COMPLETING)
    if not printed_json({"shell": shell, "script": text}):
        click.echo(text)


RECIPE = "recipe"  # printed as a schema though it is not a command


@command("reg schema list", "reg schema receipt verify", "reg schema recipe")
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def schema(words: tuple[str, ...]) -> None:
    """Print the JSON Schema of COMMAND's output with --json, or of every command's.

    COMMAND is written without reg, for example receipt verify. The word recipe prints the schema of recipe files, which
    reg compose --recipe reads. The schema is JSON with or without --json.
    """
    if words == (RECIPE,):
        print_json(composition.recipe_schema())
        return
    from cli.json_schema.commands import ERROR, SCHEMAS, schema_of  # reads many sources

    command = " ".join(("reg", *words)).removeprefix("reg reg")
    if words and command not in SCHEMAS:
        known = [name.removeprefix("reg ") for name in SCHEMAS] + [RECIPE]
        raise NotFoundError(f"there is no command {' '.join(words)!r}{suggest(' '.join(words), known)}", "reg --help")
    every: dict[str, Any] = {name: schema_of(name) for name in SCHEMAS} | {"error": ERROR}
    print_json(schema_of(command) if words else every)
