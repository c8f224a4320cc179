"""Text for messages and pages: counts, sizes, digests, shortened lists, and printable characters."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number and what it counts: `1 expert`, `2,048 tokens`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def plain(value: Any, joint: str = " ") -> str:
    """Return a value of a recipe as people read it; `joint` stands between the key and the value of a pair."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}{joint}{plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def size(nbytes: float) -> str:
    """Format a size: `41.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def short(digest: str) -> str:
    """Return the first digits of a digest, by which people and commands name it."""
    return digest[:12]


def quoted(value: object) -> str:
    """Return a value as Python writes it, of which at most 80 characters are shown."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def some(names: list[str]) -> str:
    """Return the first few of `names`, and how many more there are, with the verb: `a, b, c and 4 more are`."""
    return f"{few(names)} {'is' if len(names) == 1 else 'are'}"


def few(names: list[str], most: int = 3) -> str:
    """Return the first few of `names`, and how many more there are: `a, b, c and 4 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
