"""The page of a report: one self-contained HTML file, rendered by Jinja2 with autoescaping."""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from registry.errors import RegError
from registry.report.charts import charts
from registry.report.data import ReportData

_FOLDER = Path(__file__).parent
_EXTRA = "run: pip install 'expert-registry[report]'"

LIGHT = ("#2160b8", "#a8480a", "#17734a", "#a32f7c", "#6a4cc4", "#0b6f7d", "#b8323a", "#696404")
DARK = ("#86b6ff", "#f2a765", "#63d39b", "#f593cd", "#bda9ff", "#60cfdb", "#ff9292", "#d3cc5f")
"""Colours of the first experts on a light and a dark page; their contrast to the page is at least 4.5."""


def page(figures: ReportData) -> str:
    """Return the report as HTML.

    Raises:
        RegError: Jinja2 or vl-convert-python is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise RegError("reports need Jinja2, which is not installed", _EXTRA) from error
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "number": _number, "short": _short}
    specs = charts(figures)
    scripts = {"library": library(), "own": (_FOLDER / "page.js").read_text(encoding="utf-8")}
    return environment.get_template("page.html").render(
        figures=figures,
        places=set(specs),
        light=colours(LIGHT, len(figures.members), 0.45),
        dark=colours(DARK, len(figures.members), 0.8),
        style=_trusted((_FOLDER / "page.css").read_text(encoding="utf-8")),
        data=_trusted(as_data(specs)),
        scripts={name: _trusted(text) for name, text in scripts.items()},
        policy=" ".join(f"'sha256-{_hash(text)}'" for text in scripts.values()),
    )


@cache
def library() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, which sets `vegaEmbed`.

    Raises:
        RegError: vl-convert-python is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise RegError("charts need vl-convert-python, which is not installed", _EXTRA) from error
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def as_data(value: Any) -> str:
    """Return JSON that is safe inside a `<script>` element."""
    text = json.dumps(value, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def colours(first: tuple[str, ...], count: int, lightness: float) -> list[str]:
    """Return `count` colours: those in `first`, then hues a golden angle apart."""
    more = [f"oklch({lightness} 0.13 {number * 137.5 % 360:.1f})" for number in range(len(first), count)]
    return [*first[:count], *more]


def _trusted(text: str) -> Any:
    """Mark trusted or escaped text as HTML, so that it is not escaped again."""
    from markupsafe import Markup

    return Markup(text)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _percent(value: float | int | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}%}"


def _number(value: float | int | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _short(value: float | int | None) -> str:
    """Return a count with a unit: `21.0 M`, `674 k`."""
    if value is None:
        return "–"
    for unit in ("", " k", " M", " B"):
        if value < 1000:
            return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} T"
