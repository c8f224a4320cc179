"""Suggestions for misspelt words."""

from collections.abc import Iterable


def suggest(word: str, words: Iterable[str], likeness: float = 0.6) -> str:
    """Return `; did you mean 'math'?` with the closest of `words`; nothing if all are below `likeness` (0 to 1)."""
    import difflib  # only when a word was misspelt

    matches = difflib.get_close_matches(word, [str(known) for known in words], n=1, cutoff=likeness)
    return f"; did you mean {matches[0]!r}?" if matches else ""
