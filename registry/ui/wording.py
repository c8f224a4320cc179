"""Formatting of numbers, times and values on pages."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from registry.checkpoint.joint_training import parts_in
from registry.evaluation.stored import score_text
from registry.io.display import counted, plain, short, size
from registry.report.score_words import interval_text, sample
from store.catalog import VersionRecord


def compact(value: int | float) -> str:
    """Format a count with a unit: `6.8 M`."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 1000:
            return f"{value:,.0f}" if not unit else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} T"


def percent(share: int | float | None) -> str:
    """Format a share, with a no-break space: `88.6 %`; empty for None."""
    return "" if share is None else f"{100 * share:.1f}\u00a0%"


def figure(value: int | float | None) -> str:
    """Format a perplexity with two decimals; empty for None."""
    return "" if value is None else f"{value:.2f}"


def when(at: str | None) -> str:
    """Format a time of the catalog (UTC) to the minute: `2026-11-21 23:23`."""
    return "" if at is None else at[:16].replace("T", " ")


def ago(at: str | None) -> str:
    """Return the age of a time of the catalog in words: `3 hours ago`; empty for None."""
    if at is None:
        return ""
    try:
        then = datetime.fromisoformat(at)
    except ValueError:
        return when(at)
    seconds = (datetime.now(UTC) - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()
    if seconds < 90:
        return "just now"
    for unit, length, most in (("minute", 60, 60), ("hour", 3600, 36), ("day", 86400, 60), ("month", 2629800, 24)):
        if seconds < most * length:
            return f"{counted(round(seconds / length), unit)} ago"
    return f"{counted(round(seconds / 31557600), 'year')} ago"


def day(at: str) -> str:
    """Return the day of a time of the catalog: `24 November 2026`."""
    try:
        then = datetime.fromisoformat(at)
    except ValueError:
        return at[:10]
    return f"{then.day} {then:%B %Y}"


def sentence(text: str) -> str:
    """Return a text with a capital, if it begins with a word."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z’']+[ ,]", text) else text


def level(share: int | float) -> int:
    """Return the shade (0 to 10) of a share from 0 to 1."""
    return max(0, min(10, round(10 * share))) if share == share else 0


def done(action: str) -> str:
    """Return what an event of the log is called: its command, or what was done where no command has that name."""
    return {"forget": "scores deleted", "gc": "clean-up"}.get(action, action)


def details(event_details: dict[str, Any]) -> str:
    """Format an event's details, without digests, and with counts and bytes instead of a purge's arrays."""
    shown = {key: value for key, value in event_details.items() if key not in ("rows", "digest", "asked", "actor")}
    deleted, shared = shown.get("deleted"), shown.get("shared")
    if isinstance(deleted, (dict, list)) and isinstance(shared, (dict, list)):
        freed = f" ({size(sum(deleted.values()))})" if isinstance(deleted, dict) else ""  # older logs have no sizes
        kept = f"; {counted(len(shared), 'array')} kept, which other versions share" if shared else ""
        return f"{counted(len(deleted), 'array')} deleted{freed}{kept}"
    texts = {key: plain(value) for key, value in shown.items() if value is not None}
    return "; ".join(
        f"{key} {short(text) if len(text) == 64 and text.isalnum() else text}" for key, text in texts.items()
    )


def trained_in(version: VersionRecord) -> str:
    """Return the joint training that a version was part of, with its article; nothing where it was trained alone."""
    return next((training.called for training, _ in parts_in(version.content)), "")


FILTERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (compact, size, percent, figure, when, ago, counted, day, done, short, level, plain, trained_in)
} | {
    "number": "{:,}".format,
    "score": score_text,
    "interval": interval_text,
    "sample": lambda score: sample([row.tokens for row in score.rows.values()]),
}
"""Name in templates → function."""
