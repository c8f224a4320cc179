"""A receiver of progress that keeps what it is told, and may interrupt a training."""

from collections.abc import Iterator
from contextlib import contextmanager

from registry.progress import Advance


class Remarks:
    """Keeps labels of steps and sentences.

    Args:
        until: the number of the step of a training that is interrupted when it is done.

    Attributes:
        labels: what was told, in order: steps and sentences.
        sentences: what was said to the user, in order.
    """

    def __init__(self, until: int | None = None) -> None:
        self.labels: list[str] = []
        self.sentences: list[str] = []
        self._until = until

    @property
    def text(self) -> str:
        """All sentences, a line each."""
        return "\n".join(self.sentences)

    @contextmanager
    def __call__(self, label: str, total: int, unit: str) -> Iterator[Advance]:
        """Open a step, or keep a sentence."""
        self.labels.append(label)
        if not unit:
            self.sentences.append(label)
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if unit == "step" and done == self._until:
                raise KeyboardInterrupt

        yield advance
