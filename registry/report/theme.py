"""The theme of all charts: Vega-Lite's configuration and colours, with the page's font and CSS variables."""

from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "aria": False,  # the figure around it has a label, and a table beside it
    "mark": {"aria": False},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--text)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 120,
    },
    "legend": {"labelColor": "var(--text)", "titleColor": "var(--muted)", "labelFontSize": 12, "titleFontSize": 12},
}


def colour_scale(names: Sequence[str], experts: Sequence[str]) -> Spec:
    """Return a colour scale: each expert has its own colour, other names have the accent colour."""
    order = {name: number for number, name in enumerate(experts)}
    colours = [f"var(--e{order[name]})" if name in order else "var(--accent)" for name in names]
    return {"domain": list(names), "range": colours}
