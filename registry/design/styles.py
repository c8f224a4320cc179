"""The stylesheets and the script as text, and colours of experts: one number per name, the same on every page."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")
"""The folder of the stylesheets and the script, and of nothing else."""

COLOURS = 12
"""Number of colours in tokens.css: `--e0` to `--e11`."""

NEUTRAL = "neutral"
"""The grey of what has no colour of its own, in tokens.css: a base model, an opted-out expert, any other name."""


@cache
def static_text(name: str) -> str:
    """Return a stylesheet or the script: `tokens.css`, `base.css` or `shared.js`."""
    return (STATIC / name).read_text(encoding="utf-8")


def colour_class(name: str, colours: Mapping[str, int]) -> str:
    """Return the class that gives an element the colour of a name: `e0` to `e11`, or `neutral`.

    The token with that colour has the same name: `--e0`, `--neutral`.
    """
    return f"e{colours[name]}" if name in colours else NEUTRAL


def expert_colours(names: Iterable[str], known: Iterable[str] = (), *, grey: Iterable[str] = ()) -> dict[str, int]:
    """Return name → number of its colour, which depends on the names alone, in any order.

    A name's colour comes from its hash. Of two names with one colour, the one with the larger digest takes the next
    free colour; of more than `COLOURS` names, some share one. If `names` and other experts (`known`) are no more in
    all, pages with the same `known` agree. Names of base models and of opted-out experts (`grey`) get no number.
    """
    own = set(names)
    everybody = own.union(known)
    if len(everybody) > COLOURS:
        everybody = own
    numbers: dict[str, int] = {}
    free: list[int] = []
    for digest, name in sorted(
        (hashlib.sha256(name.encode(errors="surrogatepass")).digest(), name) for name in everybody
    ):
        free = free or list(range(COLOURS))
        first = digest[0] % COLOURS
        numbers[name] = (first + min((number - first) % COLOURS for number in free)) % COLOURS
        free.remove(numbers[name])
    return {name: number for name, number in numbers.items() if name in own.difference(grey)}
