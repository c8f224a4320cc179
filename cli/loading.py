"""Messages while large libraries are imported, which takes time, and silence of what they say themselves."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cli.errors import DEBUG_VARIABLE

_LARGEST = ("torch", "transformers")  # libraries whose import takes seconds
_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1", "HF_HUB_VERBOSITY": "error"}
"""Environment variables of the libraries, where the user has not set them."""
_LOGGERS = ("accelerate", "huggingface_hub", "peft", "torch", "transformers")


class _Announcer:
    """A finder that finds nothing, and says once that a library is about to be imported."""

    def __init__(self, names: Sequence[str], say: Callable[[str], object]) -> None:
        self._names, self._say = names, say

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Return nothing, for another finder to find the module."""
        if fullname in self._names:
            sys.meta_path.remove(self)
            self._say(fullname)


def announce_imports(say: Callable[[str], object]) -> Callable[[], None]:
    """Let `say` be called before the first library that takes seconds is imported; return what ends that."""

    def announce(name: str) -> None:
        import logging  # takes longer than the rest of a light command

        if not os.environ.get(DEBUG_VARIABLE):
            for library in _LOGGERS:
                logging.getLogger(library).setLevel(logging.ERROR)
        say(f"loading {name} …")

    return _announce(_LARGEST, announce)


def announce_catalog(say: Callable[[str], object]) -> Callable[[], None]:
    """Let `say` be called before the library of the catalog is imported; return what ends that."""
    return _announce(["sqlalchemy"], lambda _: say("opening the registry …"))  # in a few tenths of a second


def _announce(names: Sequence[str], say: Callable[[str], object]) -> Callable[[], None]:
    announcer = _Announcer(names, say)
    if not any(name in sys.modules for name in names):
        sys.meta_path.insert(0, announcer)
    return lambda: sys.meta_path.remove(announcer) if announcer in sys.meta_path else None


def silence_libraries() -> None:
    """Keep what libraries say to programmers from the user, unless REG_DEBUG or Python's -W asks for it."""
    if os.environ.get(DEBUG_VARIABLE) or sys.warnoptions:
        return
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")


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


def show_until_output(text: str) -> Callable[[], None]:
    """Show a text on stderr, if it is a terminal, until something else is written; return what erases it at the end."""
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
