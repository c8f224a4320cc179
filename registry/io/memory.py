"""Memory: what the system has left, and what the C library keeps after it was freed."""

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any


def available_memory() -> int:
    """Return the bytes that programs can take without swapping: of Linux its own estimate, elsewhere half of all."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def return_freed_memory() -> None:
    """Return freed memory to the system; nothing where the C library has no call for it.

    glibc keeps what small and medium blocks leave behind, which after many blocks of different sizes may be as much as
    is in use.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


def map_large_blocks(nbytes: int) -> None:
    """Let the C library take blocks of this size or more from the system, and return them when they are freed.

    glibc takes blocks of up to 32 MiB from heaps of its own once a block of that size was freed. Parts of uploads,
    which many threads take and free, then leave heaps of which little is in use.
    """
    with suppress(OSError, AttributeError, TypeError):  # other C libraries have no such call
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, nbytes)


_M_MMAP_THRESHOLD = -3


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
