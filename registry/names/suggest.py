"""Suggestions for misspelt words."""

from collections.abc import Iterable, Sequence


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
