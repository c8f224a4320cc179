"""The command group: shared options, the list of commands, and suggestions for misspelt commands."""

import atexit
import gc
import importlib
import os
import signal
from functools import cache
from typing import Any

import click

from cli.command_names import ALIASES, BY_WORD, COMMANDS, JOBS, SYNONYMS, summary_of
from cli.errors import CliError, translate_errors
from cli.loading import announce_catalog, announce_imports, show_until_output, silence_libraries
from cli.output import allows_colour, note, output_options
from cli.session import Session, accept_registry_options, registry_options
from registry.names.suggest import closest, did_you_mean

COMPLETING = "_REG_COMPLETE"  # environment variable that the scripts of `reg completion` set

_AS_JSON = f"{__name__}.as_json"
_SILENT = f"{__name__}.silent"


class _Group(click.Group):
    """A group that shows errors as messages (`cli.errors`), and imports a command's module when it is used."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        _collect_less()
        if not arguments and "args" not in options:  # this process is the command, not a program that calls it
            silence_libraries()
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up, as after Ctrl-C
        if COMPLETING in os.environ:
            importlib.import_module("cli.shell_completion")  # registers the completion for bash
        return super().main(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*COMMANDS, *ALIASES])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by job, with their shorter names and whole summaries, without importing them."""
        shorter = {command: f"{command}, {alias}" for alias, command in ALIASES.items()}
        width = max(len(shorter.get(name, name)) for name in COMMANDS)
        for job, names in JOBS.items():
            with formatter.section(job):
                formatter.write_dl([(shorter.get(name, name).ljust(width), summary_of(name)) for name in names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, function = COMMANDS[cmd_name].split(".")
            added = getattr(importlib.import_module(f"cli.commands.{module}"), function)
            accept_registry_options(added)
            self.add_command(added, cmd_name)
        command = super().get_command(ctx, cmd_name)
        if command is not None and ctx.resilient_parsing:  # a shell completes
            importlib.import_module("cli.shell_completion").complete_names(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            named = [word for word in args if word != "help" and not word.startswith("-")]
            if not named:
                click.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()
            ctx.meta[BY_WORD] = True
            args = [*named, "--help"]
        word = args[0]
        if word not in {*COMMANDS, *ALIASES} and not word.startswith("-") and not ctx.resilient_parsing:
            meant = SYNONYMS.get(word.lower()) or closest(word, [*COMMANDS, *ALIASES])
            following = f"reg {meant[0]} --help" if meant else "reg --help"
            raise CliError(f"there is no command {word!r}{did_you_mean(meant)}", following, "UsageError", 2)
        return super().resolve_command(ctx, [ALIASES.get(word, word), *args[1:]])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asks = "--json" in (args[: args.index("--")] if "--" in args else args)  # parsing can fail itself
        silent = asks or not {"-q", "--quiet"}.isdisjoint(args)
        with translate_errors(as_json=asks):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = asks
        context.meta[_SILENT] = silent or context.resilient_parsing
        context.color = allows_colour()
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with translate_errors(ctx, as_json=ctx.meta[_AS_JSON]):
            if not ctx.meta[_AS_JSON]:
                ctx.call_on_close(announce_imports(note))
            if not ctx.meta[_SILENT]:
                ctx.call_on_close(announce_catalog(lambda text: ctx.call_on_close(show_until_output(text))))
            return super().invoke(ctx)


@cache
def _collect_less() -> None:
    """Let the garbage collector run less often, and not at exit: it takes half as long as `import torch` itself."""
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[*registry_options(), *output_options()],
)
@click.version_option(package_name="expert-registry", prog_name="reg")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A registry of expert language models: register once, compose any subset into a sparse MoE, opt out exactly.

    \b
    Start here:  reg demo trains, composes and opts out tiny experts
    Your own:    reg add-expert NAME CKPT; reg compose --experts A,B --out DIR
    More:        reg help COMMAND, with examples
    """
    ctx.obj = Session(ctx.meta)


if __name__ == "__main__":
    main(prog_name="reg")
