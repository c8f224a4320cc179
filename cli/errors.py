"""Translation of errors into messages: the failure and the next command, as text or, with --json, as JSON.

Click's own errors are put into the same words by what they carry (parameter, option, context), not by their texts.
"""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import click

from cli.output import allows_colour
from registry.errors import RegError

DEBUG_VARIABLE = "REG_DEBUG"
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it: 128 and the number of the signal
RESUMING = frozenset(
    {"add-expert", "add-experts", "check", "collect", "demo", "push", "push-expert", "train", "train-expert",
     "train-router", "train-simoe", "train-soup"}
)  # fmt: skip
"""Commands that go on where they were interrupted."""
_MAY_NOT = "repeat as a user who may write there, or choose another path"
_SYSTEM_HINTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _MAY_NOT),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, then repeat the command"),
    errno.ENOENT: "name one that exists",
}
"""Error number of the system → hint."""


class CliError(click.ClickException):
    """An error for the user: what failed, what to type next, its name in JSON, and the exit code, 2 for wrong usage."""

    def __init__(self, message: str, hint: str | None, kind: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.kind = kind
        self.exit_code = exit_code  # type: ignore[misc]  # of the class in newer versions of Click
        self.as_json = False

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        file = file or sys.stderr
        if self.as_json:
            document = {"kind": self.kind, "message": self.message, "next": self.hint, "exit_code": self.exit_code}
            click.echo(json.dumps({"error": document}), file=file)
            return
        color = allows_colour()
        error, following = click.style("error:", fg="red", bold=True), click.style("next:", bold=True)
        click.echo(f"{error} {self.message}", file=file, color=color)
        if self.hint:
            click.echo(f"  {following} {self.hint}", file=file, color=color)


@contextmanager
def translate_errors(context: click.Context | None = None, *, as_json: bool) -> Iterator[None]:
    """Turn exceptions into messages (REG_DEBUG: show the traceback); the context is the group's, once it is known."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except (Exception, KeyboardInterrupt) as error:
        message = _translated(error, context, as_json=as_json)
        if message is None:
            raise
        message.as_json = as_json
        raise message from error


def _translated(error: BaseException, context: click.Context | None, *, as_json: bool) -> CliError | None:
    """Return the message of an error, or None if it is to be raised as it is."""
    if isinstance(error, CliError):
        return error
    at_question = isinstance(error, click.Abort) and isinstance(error.__context__, KeyboardInterrupt)
    if isinstance(error, KeyboardInterrupt) or at_question:
        command = context.invoked_subcommand if context else None
        again = "run it again; it goes on where it stopped" if command in RESUMING else "run it again"
        return CliError("interrupted", again, "Interrupted", INTERRUPTED)
    if isinstance(error, click.Abort):
        return CliError("not confirmed: nothing was done", "run it again, and answer y", "Abort")
    if isinstance(error, click.ClickException):
        return _of_click(error, context, as_json=as_json)
    closed = isinstance(error, OSError) and error.errno == errno.EPIPE  # the reader of the output has closed it
    return None if closed or os.environ.get(DEBUG_VARIABLE) else _message(error)


def _of_click(error: click.ClickException, group: click.Context | None, *, as_json: bool) -> CliError | None:
    """Return a message of an error that Click found, or that a command raised as Click's."""
    hint, kind = None, type(error).__name__
    if isinstance(error, click.UsageError):
        command = group.invoked_subcommand if group else None  # some errors of Click's have no context
        named = error.ctx.command_path.split()[1:] if error.ctx else [command] if command else []
        hint = " ".join(["reg", *named, "--help"])
    if kind == "NoArgsIsHelpError":  # newer versions of Click: its message is the help
        return CliError("a command is missing", hint, kind, error.exit_code) if as_json else None
    return CliError(_words(error), hint, kind, error.exit_code)


def _words(error: click.ClickException) -> str:
    text = error.message if type(error) is click.UsageError else error.message.removesuffix(".")  # sentences of ours
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text  # `Got unexpected …`, not `FILE …`
    if isinstance(error, click.exceptions.NoSuchOption):
        possible = error.possibilities or ()
        before_command = error.ctx is not None and error.ctx.parent is None
        if before_command and not get_close_matches(error.option_name, possible, cutoff=0.75):
            return f"there is no option {error.option_name} before a command; options of a command stand after its name"
        return f"there is no option {error.option_name}" + (f"; did you mean {possible[0]}?" if possible else "")
    if not isinstance(error, click.BadParameter):
        return text
    hint = error.param_hint
    named = hint if isinstance(hint, str) else " / ".join(hint) if hint else _name_of(error.param)
    named = named.replace("'", "")
    if not isinstance(error, click.MissingParameter):
        return f"{named}: {text}" if named else text
    choices = getattr(getattr(error.param, "type", None), "choices", ())
    return f"{named or 'a parameter'} is missing" + (f": choose from {', '.join(map(str, choices))}" if choices else "")


def _name_of(parameter: click.Parameter | None) -> str:
    """Return how a parameter is named on the command line: --out, FOLDER."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    text = "" if parameter is None else parameter.metavar or parameter.human_readable_name.upper()
    optional = text.startswith("[") and text.endswith("]")
    return (text[1:-1] if optional else text).rstrip("…")


def _message(error: BaseException) -> CliError:
    kind = type(error).__name__
    if isinstance(error, RegError):
        return CliError(error.message, error.hint, kind)
    if isinstance(error, OSError):
        from traceback import walk_tb

        path = error.filename
        if any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__)):
            path = "standard output"
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:  # else Python writes the rest at exit
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        hint = _SYSTEM_HINTS.get(error.errno or 0, "correct the cause, then repeat the command")
        return CliError(f"{error.strerror or error}" + (f": {path}" if path else ""), hint, kind)
    hint = f"this is a bug in the program; {DEBUG_VARIABLE}=1 shows where, for a report"
    return CliError(f"{kind}: {error}", hint, kind)
