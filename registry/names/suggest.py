"""Suggestions: what a misspelt word means, and a free path for a suggested command."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import count as count_from
from itertools import islice
from pathlib import Path

_NEIGHBOURS = 10_000  # most entries of a folder among which a misspelt name is looked for


def suggest(word: str, words: Iterable[str], *, most: int = 1) -> str:
    """Return `; did you mean 'math'?` with the closest of `words`, `most` of them at most; nothing without any."""
    return did_you_mean(closest(word, words, most=most))


def closest(word: str, words: Iterable[str], *, most: int = 1) -> list[str]:
    """Return the closest of `words`, the closest first (arguments as in `suggest`)."""
    import difflib  # only when a word was misspelt

    return difflib.get_close_matches(word, [str(known) for known in words], n=most)


def did_you_mean(words: Sequence[str]) -> str:
    """Return `; did you mean 'math' or 'maths'?`; nothing without a word."""
    return f"; did you mean {' or '.join(map(repr, words))}?" if words else ""


def suggest_path(path: Path, is_meant: "Callable[[os.DirEntry[str]], bool]") -> str:
    """Return `; did you mean 'text/a.jsonl.gz'?` with an entry of the folder that is meant and has nearly this name."""
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
