"""Progress of long steps: the caller supplies the bar, and the library advances it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]  # advances a bar by a number of units

Progress = Callable[[str, int, str], AbstractContextManager[Advance]]
"""Opens a bar from (label, total, unit): `with progress("collecting", total, "token") as advance: advance(256)`.

A step without a unit is a remark: its label is a sentence for the user."""


@contextmanager
def silent(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda amount: None


def remark(progress: Progress, text: str) -> None:
    """Report a sentence to the user, outside any step."""
    with progress(text, 0, ""):
        pass
