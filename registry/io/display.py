"""Text for messages and pages: shortened lists, and printable characters."""

import unicodedata
from collections.abc import Sequence


def some(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are, with the verb: `a, b, c and 4 more are`."""
    return f"{few(names)} {'is' if len(names) == 1 else 'are'}"


def few(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are: `a, b, c and 4 more`."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def printable(text: str, keep: Sequence[str] = ()) -> str:
    r"""Return text with escapes for everything that a terminal might act on, such as `\x1b` for a control character.

    Invisible characters and those that change the direction of writing (Unicode's categories C, Zl and Zp) are escaped
    too, but for those in `keep`.
    """
    return "".join(
        character
        if character in keep or (unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029")
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )
