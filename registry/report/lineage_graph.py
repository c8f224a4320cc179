"""Graph of the lineage as a Vega-Lite specification."""

from registry.report.data import ReportData
from registry.report.theme import Spec, expert_colour

_COLUMNS = ("base", "expert", "composition", "trained")


def lineage_graph(figures: ReportData) -> Spec:
    """Return the graph of the lineage from left to right: bases, experts, composition, trained compositions."""
    columns = [[node for node in figures.lineage if node.kind == kind] for kind in _COLUMNS]
    columns = [column for column in columns if column]
    rows, most = {}, max(len(column) for column in columns)
    names = {member.digest: member.name for member in figures.members}
    for column_index, column in enumerate(columns):
        for index, node in enumerate(column):
            made = node.kind in ("composition", "trained")
            shade = "var(--accent)" if made else expert_colour(names.get(node.id, ""), figures.colours)
            up = most - (index + 0.5) * most / len(column)
            rows[node.id] = {
                "x": column_index,
                "y": up,
                "label": node.label,
                "kind": node.kind,
                "told": node.told,
                "colour": shade,
            }
    edges = [
        {"x": rows[source]["x"], "y": rows[source]["y"], "x2": rows[node.id]["x"], "y2": rows[node.id]["y"]}
        for node in figures.lineage
        for source in node.of
        if source in rows
    ]
    span = len(columns) - 1
    wide: Spec = {"type": "quantitative", "axis": None, "scale": {"domain": [-0.45, span + 0.45], "nice": False}}
    high: Spec = {"type": "quantitative", "axis": None, "scale": {"domain": [0, most], "nice": False}}
    x, y = {"field": "x", **wide}, {"field": "y", **high}
    tooltip = [
        {"field": "label", "title": "name"},
        {"field": "kind", "title": "kind"},
        {"field": "told", "title": "details"},
    ]
    colour = {"field": "colour", "type": "nominal", "scale": None}
    lines = {
        "data": {"values": edges},
        "mark": {"type": "rule", "stroke": "var(--soft)", "strokeWidth": 1.5, "opacity": 0.55},
        "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}},
    }
    dots = {
        "mark": {"type": "circle", "size": 260, "opacity": 1, "stroke": "var(--surface)", "strokeWidth": 3},
        "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
    }
    widest = f"min(130, width / {len(columns)})"  # so that names side by side do not touch on a phone
    text: Spec = {"type": "text", "dy": 21, "fontSize": 12, "limit": {"expr": widest}}
    under = {
        "mark": {**text, "color": "var(--surface)", "stroke": "var(--surface)", "strokeWidth": 5},
        "encoding": {"x": x, "y": y, "text": {"field": "label"}},
    }
    labels = {
        "mark": {**text, "color": "var(--text)"},
        "encoding": {"x": x, "y": y, "text": {"field": "label"}, "tooltip": tooltip},
    }
    layers = [lines, under, dots, labels]
    return {"data": {"values": list(rows.values())}, "layer": layers, "height": max(120, 62 * most)}
