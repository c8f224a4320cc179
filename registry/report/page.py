"""The page of a report: one self-contained HTML file, rendered by Jinja2 with autoescaping."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from registry.design import REPORT_EXTRA, colour_class, environment, static_text
from registry.errors import RegError
from registry.evaluation.stored import score_text
from registry.methods.moe.preview import OVERLAP_OF_TOKEN_COUNTS
from registry.registration.expert_overlap import OVERLAP_OF_ACTIVATIONS
from registry.report.charts import charts
from registry.report.data import ReportData
from registry.report.score_words import INTERVAL_MEANS, OVER_100, interval_text, named_sample, unbroken

_FOLDER = Path(__file__).parent
_SHARE = re.compile(r"(\b[0-9]+(?:\.[0-9]+)?) %")


@dataclass(frozen=True)
class Frame:
    """The surroundings of a report among the local pages; a file has none."""

    links: tuple[tuple[str, str], ...] = ()  # name and address of each page in the navigation
    active: str | None = None  # the address that is shown as this page's
    back: tuple[str, str] | None = None  # name and address of the page that the report belongs to
    theme: str | None = None  # light or dark; None for the system's
    program: str = "reg"  # the beginning of commands: `reg`, or `reg --home DIR`
    form: str | None = None  # the address of the form that evaluates the composition


def page(figures: ReportData, frame: Frame | None = None) -> str:
    """Return the report as HTML: a file, or with a frame a local page (RegError: a library is not installed)."""
    frame = frame or Frame()
    templates = environment(_FOLDER / "templates")
    own = {one.__name__.strip("_"): one for one in (_percent, _number, _short, _sentence, _emphasised, unbroken)}
    templates.filters |= {**own, "score": score_text, "interval": interval_text}
    templates.filters["typed"] = lambda command: frame.program + command.removeprefix("reg")
    specs = charts(figures)
    own_script = static_text("shared.js") + (_FOLDER / "page.js").read_text(encoding="utf-8")
    scripts = {"library": library(), "own": own_script}
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts.values()]
    own_style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    evaluated = figures.evaluated
    text: str = templates.get_template("page.html").render(
        figures=figures,
        frame=frame,
        colour=lambda name: colour_class(name, figures.colours),
        sample=named_sample(evaluated.tokens) if evaluated else "",
        small=evaluated is not None and evaluated.is_small,
        over_100=OVER_100,
        overlap_of_activations=OVERLAP_OF_ACTIVATIONS,
        overlap_of_token_counts=OVERLAP_OF_TOKEN_COUNTS,
        interval_means=INTERVAL_MEANS,
        places=set(specs),
        style="\n".join((static_text("tokens.css"), static_text("base.css"), own_style)),
        data=as_data(specs),
        scripts=scripts,
        policy=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests),
    )
    return text


@cache
def library() -> str:
    """Return the JavaScript that sets `vegaEmbed` (RegError: vl-convert-python is not installed)."""
    try:
        import vl_convert
    except ImportError as error:
        raise RegError("charts need vl-convert-python, which is not installed", REPORT_EXTRA) from error
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def as_data(value: Any) -> str:
    """Return JSON that is safe inside a `<script>` element."""
    text = json.dumps(value, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _sentence(text: str) -> str:
    """Return a note with a capital and a full stop."""
    text = unbroken(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _emphasised(text: str) -> Any:
    """Return escaped text with its percentages in bold."""
    from markupsafe import Markup, escape

    return Markup(_SHARE.sub("<strong>\\1\u00a0%</strong>", str(escape(text))))


def _percent(value: float | int | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}\u00a0%"


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
