"""How long steps report themselves: the caller brings the bar, the library only advances it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    """Opens a bar: `with progress("collecting", total, "token") as advance: advance(256)`."""

    def __call__(self, label: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        """Return a context in which the returned function adds to the bar."""
        ...


@contextmanager
def silent(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda amount: None
