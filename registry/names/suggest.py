"""Suggestions for misspelt words."""

from collections.abc import Iterable


def suggest(word: str, words: Iterable[str], likeness: float = 0.6, *, most: int = 1) -> str:
    """Return `; did you mean 'math'?` with the closest of `words`; nothing if all are below a likeness.

    Args:
        word: the misspelt word.
        words: those that there are.
        likeness: the least likeness, from 0 to 1.
        most: how many words to name at most, the closest first: `; did you mean 'math' or 'maths'?`.
    """
    import difflib  # only when a word was misspelt

    matches = difflib.get_close_matches(word, [str(known) for known in words], n=most, cutoff=likeness)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
