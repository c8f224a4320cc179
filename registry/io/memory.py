"""Memory that the C library keeps after it was freed."""

import ctypes
from functools import cache
from typing import Any


def return_freed_memory() -> None:
    """Return freed memory to the system; nothing where the C library has no call for it.

    glibc keeps what small and medium blocks leave behind, which after many blocks of different sizes may be as much as
    is in use.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
