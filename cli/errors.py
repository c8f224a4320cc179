"""Translation of errors into messages: the failure and the next command, as text or, with --json, as JSON."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click

from cli.output import allows_colour
from registry.errors import RegError

DEBUG_VARIABLE = "REG_DEBUG"
_RIGHTS = "repeat as a user who may write there, or choose another path"
_SPACE = "free some space there, then repeat the command"
_SYSTEM_HINTS = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOENT: "name one that exists",
}
"""Error number of the system → hint."""


class CliError(click.ClickException):
    """An error for the user: a message, and the next command."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None, kind: str) -> None:
        super().__init__(message)
        self.hint = hint
        self.kind = kind

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        color = allows_colour()
        error, following = click.style("error:", fg="red", bold=True), click.style("next:", bold=True)
        click.echo(f"{error} {self.message}", file=file or sys.stderr, color=color)
        if self.hint:
            click.echo(f"  {following} {self.hint}", file=file or sys.stderr, color=color)


class _JsonError(CliError):
    """An error printed as one line of JSON on stderr."""

    def show(self, file: IO[Any] | None = None) -> None:
        document = {"kind": self.kind, "message": self.message, "next": self.hint, "exit_code": self.exit_code}
        click.echo(json.dumps({"error": document}), file=file or sys.stderr)


class _JsonUsageError(_JsonError):
    exit_code = 2


@contextmanager
def translate_errors(*, as_json: bool) -> Iterator[None]:
    """Turn exceptions of the library and the system into messages; REG_DEBUG shows the traceback instead."""
    try:
        yield
    except (click.exceptions.Exit, KeyboardInterrupt):
        raise
    except (click.ClickException, click.Abort) as error:
        if not as_json:
            raise
        raise _as_json(error) from error
    except Exception as error:
        closed = isinstance(error, OSError) and error.errno == errno.EPIPE  # the reader of the output has closed it
        if closed or os.environ.get(DEBUG_VARIABLE):
            raise
        message = _message(error)
        raise (_as_json(message) if as_json else message) from error


def _as_json(error: click.ClickException | click.Abort) -> _JsonError:
    if isinstance(error, click.Abort):
        return _JsonError("aborted: the question was not confirmed", None, "Abort")
    hint = getattr(error, "hint", None)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.command_path} --help"
    kind = _JsonUsageError if isinstance(error, click.UsageError) else _JsonError
    return kind(error.format_message(), hint, getattr(error, "kind", type(error).__name__))


def _message(error: Exception) -> CliError:
    kind = type(error).__name__
    if isinstance(error, RegError):
        return CliError(error.message, error.hint, kind)
    if isinstance(error, OSError):
        path = error.filename
        if _is_of_output(error):
            path = "standard output"
            _give_up_output()
        hint = _SYSTEM_HINTS.get(error.errno or 0, "correct the cause, then repeat the command")
        return CliError(f"{error.strerror or error}" + (f": {path}" if path else ""), hint, kind)
    hint = f"this is a bug in the program; {DEBUG_VARIABLE}=1 shows where, for a report"
    return CliError(f"{kind}: {error}", hint, kind)


def _is_of_output(error: OSError) -> bool:
    from traceback import walk_tb

    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _give_up_output() -> None:
    """Discard buffered output, which Python would otherwise try, and fail, to write again at exit."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
