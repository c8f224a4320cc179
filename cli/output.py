"""Output of the commands: results as text or JSON, remarks, progress, and the options that choose between them."""

import os
import re
import shlex
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from cli.tables import layout
from registry.progress import Advance, Progress, silent

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]  # what adds options to the function of a command
JSON_HELP = "Print JSON; errors too, on stderr."
_HUB_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"
"""Environment variable of huggingface_hub, which has its own progress bars."""
_SECRET = re.compile(r"(?<=//)([^:/@]*:)[^@]*(?=@)|(?<=[?&])(\w*(?:pass|secret|token|key)\w*=)[^&]*", re.IGNORECASE)
"""What a line with the address of a database must not repeat."""
_PROGRESS = "REG_PROGRESS"
"""Environment variable: with `lines`, progress is printed for a program to read, on a terminal or not."""
_SECONDS_BETWEEN_LINES = 0.25


def once_for_all(context: click.Context, option: click.Parameter, given: bool) -> bool:
    """Return True if a flag was given, after or before the command."""
    key = f"{__name__}.{option.name}"
    if given:
        context.meta[key] = True
        if option.name == "quiet" and os.environ.setdefault(_HUB_BARS, "1") == "1":
            context.call_on_close(lambda: os.environ.pop(_HUB_BARS, None))
    return bool(context.meta.get(key, False))


_ONCE: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": once_for_all}
_QUIET_HELP = "Print only the result: no progress, remarks or hints."
quiet_option = click.option("-q", "--quiet", help=_QUIET_HELP, **_ONCE)
"""--quiet, which `is_quiet`, `done`, `note` and `progress` obey."""


def output_options() -> list[click.Parameter]:
    """Return --json and --quiet, which the group and every command have."""
    return [
        click.Option(["--json", "as_json"], help=JSON_HELP, **_ONCE),
        click.Option(["-q", "--quiet"], help=_QUIET_HELP, **_ONCE),
    ]


def _is_on(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"{__name__}.{name}"))


def is_quiet() -> bool:
    """Return True if only results are to be printed."""
    return _is_on("quiet")


def is_json() -> bool:
    """Return True if the result is to be printed as JSON."""
    return _is_on("as_json")


def allows_colour() -> bool | None:
    """Return False if colours are disabled (NO_COLOR, TERM=dumb), else None: colours only on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def progress() -> Progress:
    """Return the progress reporter of long steps: a bar, lines for a program, or nothing with --quiet."""
    if is_quiet():
        return silent
    return lines if os.environ.get(_PROGRESS) == "lines" else bar


def note(text: str) -> None:
    """Print a remark on stderr, unless --quiet."""
    if not is_quiet():
        click.echo(text, err=True)


def announce(text: str) -> None:
    """Print on stderr what a command begins with, where no terminal shows other messages and a bar; unless --quiet."""
    if not sys.stderr.isatty():
        note(f"{text} …")


def done(brief: str | None, *lines: str) -> None:
    """Print the result of a command on stdout: `lines`, or with --quiet only `brief`, if any: its reference."""
    for line in ([] if brief is None else [brief]) if is_quiet() else lines:
        click.echo(line)


COPIES = f"{__name__}.copies"
"""Key of the local copies of folders in buckets: path → URL, which stands in lines to type."""


def next_step(command: str | Sequence[str | os.PathLike[str]]) -> None:
    """Print on stderr what to type next, unless --quiet or --json: a line, or the words of a command without `reg`."""
    if click.get_current_context(silent=True) is None or is_quiet() or is_json():
        return
    if not isinstance(command, str):
        command = reg_line([os.fspath(word) for word in command])
    click.echo(f"  {click.style('next:', bold=True)} {command}", err=True, color=allows_colour())


def reg_line(words: Sequence[str]) -> str:
    """Return a command line of reg, quoted for a shell, with --home, --database and --arrays as they were given."""
    context = click.get_current_context(silent=True)
    copies = {} if context is None else context.meta.get(COPIES, {})
    return shlex.join(("reg", *_typed_options(words), *(copies.get(word, word) for word in words)))


def on_registry(line: str) -> str:
    """Return a line with --home, --database and --arrays as they were given in the command of reg that it holds."""
    before, found, command = line.partition("reg ")
    options = shlex.join(_typed_options(command.split()))
    return f"{before}{found}{options} {command}" if found and options else line


def _typed_options(words: Sequence[str]) -> list[str]:
    """Return --home, --database and --arrays as they were given, but for those that a command has already."""
    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_root().obj
    options: list[str] = []
    for name in ("home", "database", "arrays"):
        if session is not None and name in session.typed and f"--{name}" not in words:
            value = str(getattr(session, name))
            options += [f"--{name}", _SECRET.sub(r"\1\2***", value) if name == "database" else value]
    return options


@contextmanager
def bar(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show a progress bar on stderr if it is a terminal; without a unit, print the label as a remark."""
    if not unit:
        click.echo(label, err=True)
    if not unit or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda amount: None
        return
    from tqdm import tqdm

    scale = unit == "B"
    with tqdm(
        total=total, desc=label, unit=unit, unit_scale=scale, unit_divisor=1024, leave=False, disable=None
    ) as meter:
        yield lambda amount: (meter.update(amount), None)[1]


@contextmanager
def lines(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Print progress on stderr as lines `progress: LABEL DONE/TOTAL UNIT`; without a unit, the label as a remark."""
    if not unit:
        click.echo(label, err=True)
        yield lambda amount: None
        return
    finished, printed, lock = 0, 0.0, threading.Lock()

    def tell() -> None:
        nonlocal printed
        printed = time.monotonic()
        click.echo(f"progress: {label} {finished}/{total} {unit}", err=True)

    def advance(amount: int) -> None:
        nonlocal finished
        with lock:  # files are written by several threads
            finished += amount
            if time.monotonic() - printed >= _SECONDS_BETWEEN_LINES:
                tell()

    tell()
    yield advance
    tell()


def printed_json(value: Any) -> bool:
    """Print a document, and return True, if the result is to be JSON."""
    if is_json():
        print_json(value)
    return is_json()


def print_json(value: Any) -> None:
    """Print one JSON document on stdout: dataclasses as objects, paths as text, non-finite numbers as null."""
    import json

    try:
        click.echo(json.dumps(value, indent=2, default=_plain, allow_nan=False))
    except ValueError:
        finite = json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
        click.echo(json.dumps(finite, indent=2))


def terminal_width() -> int | None:
    """Return the number of columns of the terminal; None where the output goes to a file or a program, whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout, as wide as the terminal at most; several tables where it has too many columns."""
    for number, lines in enumerate(layout(header, rows, terminal_width())):
        if number:
            click.echo()
        for index, line in enumerate(lines):
            click.echo(line if index else click.style(line, bold=True))


def print_line(text: str) -> None:
    """Print a long line on stdout, wrapped where a terminal is narrower."""
    if (width := terminal_width()) is not None:
        text = textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)
    click.echo(text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
