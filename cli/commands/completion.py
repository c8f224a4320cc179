"""reg completion."""

import click

from cli.main import COMPLETING
from cli.option_groups import GroupedCommand
from cli.options import Choice
from cli.output import as_json, print_json
from cli.shell_completion import SHELLS, script


@click.command(
    cls=GroupedCommand,
    examples=("source <(reg completion bash)", "reg completion fish > ~/.config/fish/completions/reg.fish"),
)
@click.argument("shell", type=Choice(SHELLS), metavar="SHELL")
@as_json
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the script with which SHELL (bash, zsh or fish) completes commands, options and registered names.

    In bash or zsh, for one session or in ~/.bashrc or ~/.zshrc: source <(reg completion bash). In fish:
    reg completion fish > ~/.config/fish/completions/reg.fish
    """
    text = script(shell, context.find_root().command, COMPLETING)
    if as_json:
        print_json({"shell": shell, "script": text})
    else:
        click.echo(text)
