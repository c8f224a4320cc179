"""The stylesheets as text, for pages that contain them."""

from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")
"""The folder of the stylesheets, and of nothing else."""


@cache
def stylesheet(name: str) -> str:
    """Return a stylesheet: `tokens` or `base`."""
    return (STATIC / f"{name}.css").read_text(encoding="utf-8")
