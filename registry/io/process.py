"""This process: the memory it can take and gives back, and interrupts, which wait for blocks that must not stop."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_M_MMAP_THRESHOLD = -3


def available_memory() -> int:
    """Return the bytes that programs can take without swapping: of Linux its own estimate, elsewhere half of all."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def return_freed_memory() -> None:
    """Return freed memory, of which glibc may keep as much as is in use, to the system, if there is a call for it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks(nbytes: int) -> None:
    """Let the C library take blocks of this size or more from the system, and return them when they are freed.

    glibc takes blocks of up to 32 MiB from heaps of its own once a block of that size was freed. Parts of uploads,
    which many threads take and free, then leave heaps of which little is in use.
    """
    with suppress(OSError, AttributeError, TypeError):  # other C libraries have no such call
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, nbytes)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer SIGINT and SIGTERM, where they are handled, to the end of the block; only the main thread receives them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        handled.clear()
    caught: list[tuple[int, Any]] = []
    for number in handled:
        signal.signal(number, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
    if caught:
        handled[signal.Signals(caught[0][0])](*caught[0])
