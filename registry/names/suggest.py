"""What was meant by a word that is none."""

import difflib
from collections.abc import Iterable


def suggest(word: str, words: Iterable[str], likeness: float = 0.6) -> str:
    """Return `; did you mean 'math'?` with the nearest of `words`, or nothing where none is so alike (0 to 1)."""
    found = difflib.get_close_matches(word, [str(one) for one in words], n=1, cutoff=likeness)
    return f"; did you mean {found[0]!r}?" if found else ""
