"""The command group: shared options, the one place where errors become messages, the list of commands."""

import errno
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click

from cli.session import Session
from registry.errors import RegError

COMMANDS = {
    "add-expert": "add_expert",
    "add-base": "add_base",
    "check": "check",
    "collect": "collect",
    "compose": "compose",
    "preview": "preview",
    "lam-curve": "lam_curve",
    "train-router": "train_router",
    "evaluate": "evaluate",
    "report": "report",
    "route": "route",
    "continual": "continual",
    "opt-out": "opt_out",
    "receipt": "receipt",
    "list": "list_",
    "show": "show",
    "compositions": "compositions",
    "log": "log",
    "alias": "alias",
    "export": "export",
    "push": "push",
    "push-expert": "push_expert",
    "reproduce": "reproduce",
    "verify": "verify",
    "gc": "gc",
    "ui": "ui",
    "db": "db",
    "demo": "demo",
}
"""Command → its function, in the file of that name (without a `_` at the end, which only avoids a built-in name)."""

DEBUG_VARIABLE = "REG_DEBUG"
_RIGHTS = "repeat as a user who may write there, or name another place"
_SPACE = "free some space there, then repeat the command"
_SYSTEM_HINTS = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOENT: "name one that exists",
}
"""What to do where the system refused, by the error's number."""


class _Told(click.ClickException):
    """An error as a user sees it: what failed, and the next command."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", file=file or sys.stderr)
        if self.hint:
            click.echo(f"  next: {self.hint}", file=file or sys.stderr)


class _Group(click.Group):
    """Turns every exception of the library and of the system into a message; a traceback only with REG_DEBUG.

    A command's file is imported when the command is asked for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            function = COMMANDS[cmd_name]
            self.add_command(getattr(importlib.import_module(f"cli.{function.rstrip('_')}"), function))
        return super().get_command(ctx, cmd_name)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _told():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _told():
            return super().invoke(ctx)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt):
        raise
    except Exception as error:
        closed = isinstance(error, OSError) and error.errno == errno.EPIPE  # whoever reads our output has left
        if closed or os.environ.get(DEBUG_VARIABLE):
            raise
        raise _message(error) from error


def _message(error: Exception) -> _Told:
    if isinstance(error, RegError):
        return _Told(error.message, error.hint)
    if isinstance(error, OSError):
        place = error.filename
        if _is_of_output(error):
            place = "standard output"
            _give_up_output()
        hint = _SYSTEM_HINTS.get(error.errno or 0, "mend that, then repeat the command")
        return _Told(f"{error.strerror or error}" + (f": {place}" if place else ""), hint)
    hint = f"this is a fault of the program; {DEBUG_VARIABLE}=1 shows where, for a report"
    return _Told(f"{type(error).__name__}: {error}", hint)


def _is_of_output(error: OSError) -> bool:
    from traceback import walk_tb

    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _give_up_output() -> None:
    """Let what was printed and not yet written go, or the end of the program would try, and fail, again."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _not_empty(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter("it is empty")  # of a variable not set, perhaps: it must not mean some other registry
    return value


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--home",
    callback=_not_empty,
    envvar="REG_HOME",
    metavar="DIR",
    help="The registry's folder (REG_HOME).",
)
@click.option(
    "--database",
    callback=_not_empty,
    envvar="REG_DATABASE",
    metavar="URL",
    help="SQLAlchemy URL of the catalog (REG_DATABASE).",
)
@click.version_option(package_name="expert-registry", prog_name="reg")
@click.pass_context
def main(ctx: click.Context, home: str | None, database: str | None) -> None:
    """A registry of expert language models: register once, compose any subset into a sparse MoE, opt out exactly."""
    ctx.obj = Session(None if home is None else Path(home), database)
