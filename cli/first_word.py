"""A word on the terminal until a command has something to print."""

import os
import sys
from collections.abc import Callable
from typing import Any

_ERASE = "\r\x1b[K"


class _Watched:
    """A text stream that calls a function before anything is written to it."""

    def __init__(self, stream: Any, before: Callable[[], None]) -> None:
        self._stream, self._before = stream, before

    def write(self, text: str) -> int:
        """Write a text, as the stream does."""
        self._before()
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show_first_word(text: str) -> Callable[[], None]:
    """Show a text on stderr, if it is a terminal, until something is written to stdout or stderr.

    Returns:
        what erases it, for the end of a command that prints nothing.
    """
    out, err = sys.stdout, sys.stderr
    if not err.isatty() or os.environ.get("TERM") == "dumb":
        return lambda: None

    def erase() -> None:
        if sys.stderr is watched:
            sys.stdout, sys.stderr = out, err
            err.write(_ERASE)
            err.flush()

    watched: Any = _Watched(err, erase)
    sys.stdout, sys.stderr = _Watched(out, erase), watched
    err.write(text)
    err.flush()
    return erase
