"""Paths of results that do not exist yet, for commands that are suggested."""

from itertools import count as count_from
from pathlib import Path


def fresh(name: str) -> str:
    """Return a path that does not exist yet: `moe/`, or `moe-2/` where there is one."""
    stem, dot, ending = name.rstrip("/").partition(".")
    slash = "/" if name.endswith("/") else ""
    return next(
        path + slash
        for number in count_from(1)
        if not Path(path := stem + ("" if number == 1 else f"-{number}") + dot + ending).exists()
    )
