"""The options before a command, and the registry that they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.output import progress

if TYPE_CHECKING:
    from registry import Registry


class Session:
    """The options before the command; `typed` are the names of those that are not from the environment."""

    def __init__(self, home: Path | None, database: str | None, typed: frozenset[str] = frozenset()) -> None:
        self.home = home
        self.database = database
        self.typed = typed

    @contextmanager
    def registry(self, *, create: bool = False) -> Iterator["Registry"]:
        """Open the registry with progress bars, and close it; with `create`, create it if it does not exist."""
        from registry import Registry

        with Registry(self.home, database=self.database, progress=progress(), create=create) as registry:
            yield registry


pass_session = click.make_pass_decorator(Session)
