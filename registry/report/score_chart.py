"""Chart of scores by domain: the composition, base model and averaged weights, perfect routing, and 100."""

from typing import Any

from registry.report.data import ReportData, ScoreRow
from registry.report.score_words import interval_text
from registry.report.theme import Spec, expert_colour, linear_axis, ticks

ROW = 38
"""Height of a domain's row, in pixels."""

MEAN = "all domains"
"""The row of the averages."""


def score_chart(figures: ReportData, own: ScoreRow) -> Spec:
    """Return a dot for each domain's score with its interval; base model, average and oracle are marks beside it."""
    references = [(kind, row) for kind in ("base", "average", "oracle") if (row := figures.row(kind))]
    domains = [*([MEAN] if len(own.score) > 1 and own.average is not None else []), *own.score]
    rows: list[dict[str, Any]] = []
    for domain in domains:
        values = {kind: _score(row, domain) for kind, row in [("own", own), *references]}
        known = [value for value in values.values() if value is not None]
        colour = "var(--text)" if domain == MEAN else expert_colour(domain, figures.colours)
        rows.append({"domain": domain, "colour": colour, "low": min(known), "high": max(known), **values})
        ends = own.average_interval if domain == MEAN else own.interval.get(domain)
        if ends is not None:
            rows[-1] |= {"from": ends[0], "to": ends[1], "interval": interval_text(ends)}
    shown = [row[key] for row in rows for key in ("low", "high", "from", "to") if key in row]
    axis = ticks(min(*shown, 100.0), max(*shown, 100.0))
    x = linear_axis("own", "score", axis, tickSize=4)
    y = {
        "field": "domain",
        "type": "nominal",
        "sort": domains,
        "axis": {"title": None, "ticks": False, "domain": False, "labelPadding": 8},
    }
    names = (
        ("own", figures.kind),
        ("base", "base model"),
        ("average", "averaged weights"),
        ("oracle", "perfect routing"),
    )
    tooltip = [{"field": "domain", "title": "domain"}] + [
        {"field": kind, "title": name, "format": ".1f"}
        for kind, name in names
        if kind == "own" or kind in dict(references)
    ]
    tooltip += [{"field": "interval", "title": "95 % interval"}] if any("interval" in row for row in rows) else []

    def at(kind: str, mark: Spec) -> Spec:
        return {
            "transform": [{"filter": f"isValid(datum.{kind})"}],
            "mark": mark,
            "encoding": {"x": {**x, "field": kind}, "y": y, "tooltip": tooltip},
        }

    hundred = {
        "data": {"values": [{"own": 100}]},
        "mark": {"type": "rule", "stroke": "var(--text)", "strokeWidth": 1, "strokeDash": [2, 3]},
        "encoding": {"x": x},
    }
    span = {
        "mark": {"type": "rule", "stroke": "var(--edge)", "strokeWidth": 2, "strokeCap": "round"},
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y},
    }
    whisker = at("own", {"type": "rule", "strokeWidth": 7, "strokeCap": "butt", "opacity": 0.4})
    whisker["transform"] = [{"filter": "isValid(datum.interval)"}]
    whisker["encoding"] |= {
        "x": {**x, "field": "from"},
        "x2": {"field": "to"},
        "color": {"field": "colour", "type": "nominal", "scale": None},
    }
    shape = {"filled": False, "fill": "var(--surface)", "stroke": "var(--soft)", "strokeWidth": 2, "opacity": 1}
    dots = at("own", {"type": "circle", "size": 190, "opacity": 1, "stroke": "var(--surface)", "strokeWidth": 2})
    dots["encoding"]["color"] = {"field": "colour", "type": "nominal", "scale": None}
    label = at("own", {"type": "text", "dy": -15, "fontSize": 11, "fontWeight": 600, "color": "var(--text)"})
    label["encoding"]["text"] = {"field": "own", "type": "quantitative", "format": ".1f"}
    return {
        "data": {"values": rows},
        "layer": [
            hundred,
            span,
            whisker,
            at("base", {"type": "point", "shape": "square", "size": 60, **shape}),
            at("average", {"type": "point", "shape": "circle", "size": 70, **shape}),
            dots,
            at("oracle", {"type": "point", "shape": "diamond", "size": 50, **shape}),  # often in a dot: above it
            label,
        ],
        "height": ROW * len(domains),
    }


def _score(row: ScoreRow, domain: str) -> float | None:
    return row.average if domain == MEAN else row.score.get(domain)
