"""What every command shares: the registry it opens, and how it prints."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from registry.progress import Advance, Progress, silent

if TYPE_CHECKING:
    from registry import Registry

Command = TypeVar("Command", bound=Callable[..., Any])

JSON_HELP = "Print JSON; an error too, on stderr."
_HUB_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"
"""Read by huggingface_hub, which has bars of its own."""
_QUIET_HELP = "Print the result alone: no progress, no remark, no hint."


def once_for_all(context: click.Context, option: click.Parameter, given: bool) -> bool:
    """Return whether a flag was given, here or before the command."""
    key = f"{__name__}.{option.name}"
    if given:
        context.meta[key] = True
        if option.name == "quiet" and os.environ.setdefault(_HUB_BARS, "1") == "1":
            context.call_on_close(lambda: os.environ.pop(_HUB_BARS, None))
    return bool(context.meta.get(key, False))


def quiet_option(command: Command) -> Command:
    """Add --quiet, which a command need not look at: `is_quiet`, `done`, `note` and `progress` do."""
    return click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=once_for_all, help=_QUIET_HELP)(
        command
    )


def as_json(command: Command) -> Command:
    """Add --json and --quiet: every command has both."""
    option = click.option("--json", "as_json", is_flag=True, callback=once_for_all, help=JSON_HELP)
    return option(quiet_option(command))


def output_options(group: Command) -> Command:
    """Add --json and --quiet to the group, where they hold for whatever command follows."""
    option = click.option("--json", "as_json", is_flag=True, expose_value=False, callback=once_for_all, help=JSON_HELP)
    return option(quiet_option(group))


def is_quiet() -> bool:
    """Return whether only results are to be printed."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"{__name__}.quiet"))


def allows_colour() -> bool | None:
    """Return False where nobody wants colour (NO_COLOR, TERM=dumb), else None: on a terminal alone."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


class Session:
    """The options that stand before the command."""

    def __init__(self, home: Path | None, database: str | None) -> None:
        self.home = home
        self.database = database

    @contextmanager
    def registry(self, *, create: bool = False) -> Iterator["Registry"]:
        """Open the registry, with progress bars, and close it; `create`: make it where there is none."""
        from registry import Registry

        with Registry(self.home, database=self.database, progress=progress(), create=create) as registry:
            yield registry


pass_session = click.make_pass_decorator(Session)


def progress() -> Progress:
    """Return what long steps report to: a bar, or with --quiet nothing."""
    return silent if is_quiet() else bar


def note(text: str) -> None:
    """Print on stderr what is no result, unless --quiet."""
    if not is_quiet():
        click.echo(text, err=True)


def done(brief: str | None, *lines: str) -> None:
    """Print what a command did, on stdout.

    Args:
        brief: with --quiet only this: what the result is called from now on; None for nothing.
        lines: what is printed else.
    """
    for line in ([] if brief is None else [brief]) if is_quiet() else lines:
        click.echo(line)


@contextmanager
def bar(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show a progress bar with rate and time left on stderr, where that is a terminal; a remark in any case."""
    if not unit:
        click.echo(label, err=True)
    if not unit or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda amount: None
        return
    from tqdm import tqdm

    scale = unit == "B"
    with tqdm(
        total=total, desc=label, unit=unit, unit_scale=scale, unit_divisor=1024, leave=False, disable=None
    ) as shown:
        yield lambda amount: (shown.update(amount), None)[1]


def print_json(value: Any) -> None:
    """Print one JSON document on stdout: dataclasses as objects, paths as text, null for what is not finite."""
    import json

    try:
        click.echo(json.dumps(value, indent=2, default=_plain, allow_nan=False))
    except ValueError:
        finite = json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
        click.echo(json.dumps(finite, indent=2))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print left-aligned columns on stdout."""
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for number, row in enumerate(table):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if number else click.style(line, bold=True))


def size(nbytes: float) -> str:
    """Return a size as a person reads it: `41.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def count(number: int, what: str, plural: str | None = None) -> str:
    """Return a number of things as people write it: `1 array`, `1,200 arrays`."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def pairs(texts: Sequence[str], what: str) -> list[tuple[str, str]]:
    """Return (key, value) of each `key=value`.

    Raises:
        click.BadParameter: a text has no `=`, or nothing before or after it.
    """
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.BadParameter(f"{text!r} is not of the form {what}")
        found.append((key, value))
    return found


def split(texts: Sequence[str]) -> list[str]:
    """Return the parts of comma-separated lists, in order."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
