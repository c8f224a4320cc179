"""How long steps report themselves: the caller brings the bar, the library only advances it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
"""Adds to a bar."""

Progress = Callable[[str, int, str], AbstractContextManager[Advance]]
"""Opens a bar from (label, total, unit): `with progress("collecting", total, "token") as advance: advance(256)`.

A step without a unit is a remark: its label is a sentence that a user should read now."""


@contextmanager
def silent(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda amount: None


def remark(progress: Progress, text: str) -> None:
    """Say something that is no step of its own."""
    with progress(text, 0, ""):
        pass
