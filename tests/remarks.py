"""A receiver of progress that keeps what is said to the user."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from registry.progress import Advance


class Remarks:
    """Keeps sentences; steps are passed over.

    Attributes:
        sentences: what was said, in order.
    """

    def __init__(self) -> None:
        self.sentences: list[str] = []

    @property
    def text(self) -> str:
        """All of them, a line each."""
        return "\n".join(self.sentences)

    def __call__(self, label: str, total: int, unit: str) -> Any:
        """Open a step, or keep a sentence."""
        if not unit:
            self.sentences.append(label)
        return _step()


@contextmanager
def _step() -> Iterator[Advance]:
    yield lambda amount: None
