"""Linear algebra on one thread, so that its last bits do not depend on how many there are; values threads share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread while the context is open."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Once(Generic[T]):
    """A value that the first thread to ask for it computes; the others wait. The next one repeats what fails."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute, self._lock = compute, Lock()
        self._found: list[T] = []

    def __call__(self) -> T:
        """Return the value."""
        with self._lock:
            if not self._found:
                self._found.append(self._compute())
            return self._found[0]
