"""How figures, times and values are written on pages."""

from collections.abc import Mapping
from typing import Any


def number(value: int | float) -> str:
    """Return `6,819,072`."""
    return f"{value:,}"


def compact(value: int | float) -> str:
    """Return a count at a glance: `6.8 M`."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 1000:
            return f"{value:,.0f}" if not unit else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} T"


def size(nbytes: int | float) -> str:
    """Return a size: `41.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def percent(share: int | float | None) -> str:
    """Return `88.6 %`; nothing for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def figure(value: int | float | None) -> str:
    """Return a perplexity or a score, to two places; nothing for None."""
    return "" if value is None else f"{value:.2f}"


def when(at: str | None) -> str:
    """Return the minute of a time of the catalog, which is in UTC: `2026-11-21 23:23`."""
    return "" if at is None else at[:16].replace("T", " ")


def short(digest: str) -> str:
    """Return the digits of a digest by which people tell it."""
    return digest[:12]


def level(share: int | float) -> int:
    """Return which of the shades 0 to 10 stands for a share from 0 to 1."""
    return max(0, min(10, round(10 * share))) if share == share else 0


def plain(value: Any) -> str:
    """Return a recipe's value as people write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(plain(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def details(found: dict[str, Any]) -> str:
    """Return an event's details without the digests of rows, and of a purge's arrays only how many."""
    shown = {key: value for key, value in found.items() if key != "rows"}
    shown |= {key: len(shown[key]) for key in ("deleted", "shared") if isinstance(shown.get(key), (dict, list))}
    return "; ".join(f"{key} {_shortened(value)}" for key, value in shown.items() if value is not None)


def _shortened(value: Any) -> str:
    text = plain(value)
    return short(text) if len(text) == 64 and text.isalnum() else text


FILTERS = {
    name: function
    for name, function in globals().items()
    if name in ("number", "compact", "size", "percent", "figure", "when", "short", "level", "plain")
}
"""Name in templates → function."""
