"""What was computed for pages and is slow to make, kept in memory for as long as nothing changes in the registry."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class PageCache:
    """Computed values by key, all forgotten when the log has a new event: of what is purged, nothing stays.

    Computing happens for one caller at a time: it uses every core, and linear algebra sets the number of threads of
    the whole process.
    """

    def __init__(self, state: Callable[[], str], size: int = 64) -> None:
        """Make an empty one.

        Args:
            state: returns what is another text whenever something changed.
            size: values at most; those used least recently go first.
        """
        self._state, self._size = state, size
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._seen = ""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of `key`, from `make` where there is none; one that changed meanwhile is not kept."""
        with self._lock:
            state = self._state()
            if state != self._seen:
                self._values.clear()
                self._seen = state
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[return-value]  # made by the same caller's `make`
            value = make()
            if self._state() == state:
                self._values[key] = value
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
            return value

    def refresh(self) -> None:
        """Forget what is no longer so, if nobody computes just now, who will."""
        if self._lock.acquire(blocking=False):
            try:
                if self._state() != self._seen:
                    self._values.clear()
            finally:
                self._lock.release()
