"""Suggestions: what a misspelt word means, and a free path for a suggested command."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import count as count_from
from itertools import islice
from pathlib import Path

_NEIGHBOURS = 10_000
"""Most entries of a folder among which a misspelt name is looked for."""


def suggest(word: str, words: Iterable[str], likeness: float = 0.6, *, most: int = 1) -> str:
    """Return `; did you mean 'math'?` with the closest of `words`; nothing if all are below a likeness.

    Args:
        word: the misspelt word.
        words: those that there are.
        likeness: the least likeness, from 0 to 1.
        most: how many words to name at most, the closest first: `; did you mean 'math' or 'maths'?`.
    """
    return did_you_mean(closest(word, words, likeness, most=most))


def closest(word: str, words: Iterable[str], likeness: float = 0.6, *, most: int = 1) -> list[str]:
    """Return the closest of `words`, the closest first (arguments as in `suggest`)."""
    import difflib  # only when a word was misspelt

    return difflib.get_close_matches(word, [str(known) for known in words], n=most, cutoff=likeness)


def did_you_mean(words: Sequence[str]) -> str:
    """Return `; did you mean 'math' or 'maths'?`; nothing without a word."""
    return f"; did you mean {' or '.join(map(repr, words))}?" if words else ""


def suggest_path(path: Path, is_meant: "Callable[[os.DirEntry[str]], bool]") -> str:
    """Return `; did you mean 'text/a.jsonl.gz'?` with an entry of the same folder that has nearly this name.

    Args:
        path: what is not there.
        is_meant: tells whether an entry is of the kind that is.
    """
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _NEIGHBOURS) if is_meant(entry)]
    except OSError:
        return ""
    return did_you_mean([str(path.parent / name) for name in closest(path.name, names)])


def fresh(name: str) -> str:
    """Return a path that does not exist yet: `moe/`, or `moe-2/` where there is one."""
    stem, dot, ending = name.rstrip("/").partition(".")
    slash = "/" if name.endswith("/") else ""
    return next(
        path + slash
        for number in count_from(1)
        if not Path(path := stem + ("" if number == 1 else f"-{number}") + dot + ending).exists()
    )
