"""The one place where errors become messages: what failed and the next command, as text, or with --json as JSON."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click

from cli.session import allows_colour
from registry.errors import RegError

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


class Told(click.ClickException):
    """An error as a user sees it: what failed, and the next command."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None, kind: str) -> None:
        super().__init__(message)
        self.hint = hint
        self.kind = kind

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        color = allows_colour()
        error, following = click.style("error:", fg="red", bold=True), click.style("next:", bold=True)
        click.echo(f"{error} {self.message}", file=file or sys.stderr, color=color)
        if self.hint:
            click.echo(f"  {following} {self.hint}", file=file or sys.stderr, color=color)


class _ToldAsJson(Told):
    """The same, as one line of JSON on stderr."""

    def show(self, file: IO[Any] | None = None) -> None:
        translate_errors = {"kind": self.kind, "message": self.message, "next": self.hint, "exit_code": self.exit_code}
        click.echo(json.dumps({"error": translate_errors}), file=file or sys.stderr)


class _MisusedAsJson(_ToldAsJson):
    exit_code = 2


@contextmanager
def translate_errors(*, as_json: bool) -> Iterator[None]:
    """Turn every exception of the library and of the system into a message; a traceback only with REG_DEBUG."""
    try:
        yield
    except (click.exceptions.Exit, KeyboardInterrupt):
        raise
    except (click.ClickException, click.Abort) as error:
        if not as_json:
            raise
        raise _as_json(error) from error
    except Exception as error:
        closed = isinstance(error, OSError) and error.errno == errno.EPIPE  # whoever reads our output has left
        if closed or os.environ.get(DEBUG_VARIABLE):
            raise
        message = _message(error)
        raise (_as_json(message) if as_json else message) from error


def _as_json(error: click.ClickException | click.Abort) -> _ToldAsJson:
    if isinstance(error, click.Abort):
        return _ToldAsJson("stopped, as it was not agreed to", None, "Abort")
    hint = getattr(error, "hint", None)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.command_path} --help"
    kind = _MisusedAsJson if isinstance(error, click.UsageError) else _ToldAsJson
    return kind(error.format_message(), hint, getattr(error, "kind", type(error).__name__))


def _message(error: Exception) -> Told:
    kind = type(error).__name__
    if isinstance(error, RegError):
        return Told(error.message, error.hint, kind)
    if isinstance(error, OSError):
        place = error.filename
        if _is_of_output(error):
            place = "standard output"
            _give_up_output()
        hint = _SYSTEM_HINTS.get(error.errno or 0, "mend that, then repeat the command")
        return Told(f"{error.strerror or error}" + (f": {place}" if place else ""), hint, kind)
    hint = f"this is a bug in the program; {DEBUG_VARIABLE}=1 shows where, for a report"
    return Told(f"{kind}: {error}", hint, kind)


def _is_of_output(error: OSError) -> bool:
    from traceback import walk_tb

    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _give_up_output() -> None:
    """Let what was printed and not yet written go, or the end of the program would try, and fail, again."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
