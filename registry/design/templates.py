"""Templates of pages: their environment, and `templates/shared.html`, the macros that all pages have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from registry.errors import RegError

REPORT_EXTRA = "run: pip install 'expert-registry[report]'"


def environment(folder: Path) -> Any:
    """Return the Jinja2 environment of the templates in a folder and of the shared ones, which escapes all values.

    (RegError: Jinja2 is not installed.)
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise RegError("reports need Jinja2, which is not installed", REPORT_EXTRA) from error
    templates = Environment(
        loader=FileSystemLoader([folder, Path(__file__).with_name("templates")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"column": column, "numbers": numbers}
    return templates


def column(name: object, kind: str, text: str = "{}") -> list[str]:
    """Return a column of a table: its name in a text or markup, and the class of its cells."""
    return [text.format(name), kind]


def numbers(names: Sequence[str]) -> list[str | list[str]]:
    """Return the columns of a table of numbers whose first column names its rows."""
    return [names[0], *([name, "num"] for name in names[1:])]
