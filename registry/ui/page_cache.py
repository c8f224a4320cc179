"""An in-memory cache for slow parts of pages, valid until the registry changes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class PageCache:
    """Computed values by key, all deleted when the log has a new event, so that no purged content stays.

    One caller computes at a time: a computation uses every core, and linear algebra sets the number of threads of the
    whole process.
    """

    def __init__(self, state: Callable[[], str], size: int = 64) -> None:
        """Create an empty cache.

        Args:
            state: returns a text that differs after every change of the registry.
            size: maximum number of values; the least recently used are deleted first.
        """
        self._state, self._size = state, size
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._seen = ""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of `key`, computed by `make` if absent; it is not kept if the registry changed meanwhile."""
        with self._lock:
            state = self._state()
            if state != self._seen:
                self._values.clear()
                self._seen = state
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[return-value]   # computed by the same caller's `make`
            value = make()
            if self._state() == state:
                self._values[key] = value
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
            return value

    def refresh(self) -> None:
        """Delete outdated values, unless another thread is computing, which deletes them itself."""
        if self._lock.acquire(blocking=False):
            try:
                if self._state() != self._seen:
                    self._values.clear()
            finally:
                self._lock.release()
