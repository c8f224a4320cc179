"""What every command shares: the registry it opens, and how it prints."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from registry.progress import Advance

if TYPE_CHECKING:
    from registry import Registry

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Session:
    """The options that stand before the command."""

    def __init__(self, home: Path | None, database: str | None) -> None:
        self.home = home
        self.database = database

    @contextmanager
    def registry(self, *, create: bool = False) -> Iterator["Registry"]:
        """Open the registry, with progress bars, and close it; `create`: make it where there is none."""
        from registry import Registry

        with Registry(self.home, database=self.database, progress=bar, create=create) as registry:
            yield registry


pass_session = click.make_pass_decorator(Session)


@contextmanager
def bar(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show a progress bar on stderr, off when that is not a terminal; a remark is printed there in any case."""
    if not unit:
        click.echo(label, err=True)
    if not unit or not sys.stderr.isatty():
        yield lambda amount: None
        return
    from tqdm import tqdm

    scale = unit == "B"
    with tqdm(
        total=total, desc=label, unit=unit, unit_scale=scale, unit_divisor=1024, leave=False, disable=None
    ) as shown:
        yield lambda amount: (shown.update(amount), None)[1]


def print_json(value: Any) -> None:
    """Print one JSON document on stdout: dataclasses as objects, paths as strings."""
    import json

    click.echo(json.dumps(value, indent=2, default=_plain))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print left-aligned columns on stdout."""
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def size(nbytes: float) -> str:
    """Return a size as a person reads it: `41.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


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
