"""What the library says while it works, beside its bars: on stderr, a terminal or not, so that stdout stays data."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from registry.progress import Advance, Progress


def remarking(progress: Progress) -> Progress:
    """Return `progress` with its remarks printed, and with a word where a pass goes on from an interrupted one."""

    @contextmanager
    def shown(label: str, total: int, unit: str) -> Iterator[Advance]:
        if not unit:
            click.echo(label, err=True)
            yield lambda amount: None
            return
        if label != "collecting":
            with progress(label, total, unit) as advance:
                yield advance
            return
        begun = False

        def counted(amount: int) -> None:  # the first amount of a pass is what an interrupted one had counted
            nonlocal begun
            if amount and not begun:
                click.echo(f"an interrupted pass goes on: {amount:,} of {total:,} tokens were counted before", err=True)
            begun = True
            advance(amount)

        with progress(label, total, unit) as advance:
            yield counted

    return shown
