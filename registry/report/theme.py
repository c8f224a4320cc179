"""The theme of all charts: Vega-Lite's configuration, with the page's font and CSS variables."""

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
