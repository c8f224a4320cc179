"""Charts as Vega-Lite specifications; colours are the page's CSS variables, so that one chart serves light and dark."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.io.display import printable
from registry.report.data import ReportData, RoutingData
from registry.report.line_charts import active_experts_curve, loss_curves, ridge_curves
from registry.report.mask_tree import mask_tree
from registry.report.theme import CONFIG, Spec, colour_scale

CELL = 26
"""Height of a row, in pixels."""

MOST_LABELLED = 14
"""Number of columns up to which every cell of a heat map shows its value."""


def charts(figures: ReportData) -> dict[str, Spec]:
    """Return the available charts by their place in the page."""
    specs = {}
    if routing := figures.routing:
        for number, domain in enumerate(routing.shares):
            specs[f"routing-{number}"] = _routing(figures, routing, domain)
        specs["confusion"] = _confusion(figures, routing)
        specs["load"] = _load(figures, routing)
    if figures.overlap:
        specs["overlap"] = _overlap(figures.experts, figures.overlap)
    if figures.mask_overlap:
        specs["mask-overlap"] = _overlap(figures.experts, figures.mask_overlap)
    if figures.mask_joins:
        specs["mask-tree"] = mask_tree(figures.experts, figures.mask_joins)
    if any(row.score for row in figures.scores):
        specs["scores"] = _scores(figures)
    if figures.curves:
        specs["curves"] = ridge_curves(figures)
    if len(figures.active_experts) > 1:
        specs["active"] = active_experts_curve(figures)
    if figures.trainings:
        specs["losses"] = loss_curves(figures.trainings, figures.experts)
    if figures.training:
        specs["training"] = loss_curves([figures.training], (), "trained")
    if figures.lineage:
        specs["lineage"] = _lineage(figures)
    common = {"config": CONFIG, "width": "container", "autosize": _AUTOSIZE}
    return {place: _printable({**common, **spec}) for place, spec in specs.items()}


def _printable(value: Any) -> Any:
    """Return a specification without control characters and line separators, which Vega's expressions reject."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


_AUTOSIZE = {"type": "fit-x", "contains": "padding"}


def _cells(
    rows: Sequence[Mapping[str, Any]],
    x: Spec,
    y: Spec,
    colour: Spec,
    tooltip: Sequence[Spec],
    labelled: bool,
    form: str,
    least: float = 0.0,
) -> Spec:
    """Return a heat map; opacity grows with the share, and cells below `least` have no label."""
    strength = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": [0.05, 1]},
        "legend": None,
    }
    cells = {
        "mark": {"type": "rect", "cornerRadius": 3, "stroke": "var(--panel)", "strokeWidth": 2},
        "encoding": {"x": x, "y": y, "color": colour, "opacity": strength, "tooltip": list(tooltip)},
    }
    text = {
        "transform": [{"filter": f"datum.share >= {least}"}],
        "mark": {"type": "text", "fontSize": 11, "tooltip": None},
        "encoding": {
            "x": x,
            "y": y,
            "text": {"field": "share", "type": "quantitative", "format": form},
            "color": {"condition": {"test": "datum.share > 0.6", "value": "var(--on-strong)"}, "value": "var(--text)"},
        },
    }
    return {"data": {"values": list(rows)}, "layer": [cells, text] if labelled else [cells]}


def _routing(figures: ReportData, routing: RoutingData, domain: str) -> Spec:
    experts = figures.experts
    rows = [
        {"layer": str(layer), "expert": expert, "share": routing.shares[domain][expert][index]}
        for expert in routing.shares[domain]
        for index, layer in enumerate(routing.layers)
    ]
    x = {
        "field": "layer",
        "type": "ordinal",
        "sort": None,
        "axis": {"title": "layer", "labelAngle": 0, "orient": "bottom"},
    }
    y = {
        "field": "expert",
        "type": "nominal",
        "sort": list(experts),
        "axis": {"title": None, "ticks": False, "domain": False},
    }
    colour = {"field": "expert", "type": "nominal", "scale": colour_scale(experts, experts), "legend": None}
    tooltip = [
        {"field": "layer", "title": "layer"},
        {"field": "expert", "title": "expert"},
        {"field": "share", "title": f"of {domain}", "format": ".1%"},
    ]
    labelled = len(routing.layers) <= MOST_LABELLED
    return {**_cells(rows, x, y, colour, tooltip, labelled, ".0%", 0.005), "height": CELL * len(experts)}


def _confusion(figures: ReportData, routing: RoutingData) -> Spec:
    experts = figures.experts
    rows = [
        {"domain": domain, "expert": expert, "share": routing.mean(domain, expert)}
        for domain in routing.shares
        for expert in routing.shares[domain]
    ]
    x = {
        "field": "expert",
        "type": "nominal",
        "sort": list(experts),
        "axis": {"title": "goes to expert", "orient": "top", "labelAngle": -35, "ticks": False, "domain": False},
    }
    y = {
        "field": "domain",
        "type": "nominal",
        "sort": list(routing.shares),
        "axis": {"title": "text of", "ticks": False, "domain": False},
    }
    colour = {"field": "expert", "type": "nominal", "scale": colour_scale(experts, experts), "legend": None}
    tooltip = [
        {"field": "domain", "title": "text of"},
        {"field": "expert", "title": "goes to"},
        {"field": "share", "title": "share", "format": ".1%"},
    ]
    return {
        **_cells(rows, x, y, colour, tooltip, len(experts) <= MOST_LABELLED, ".1%"),
        "height": (CELL + 8) * len(routing.shares),
    }


def _overlap(experts: Sequence[str], overlap: Sequence[tuple[str, str, float]]) -> Spec:
    rows = [
        {"a": a, "b": b, "share": share}
        for first, second, share in overlap
        for a, b in ((first, second), (second, first))
    ]
    x = {
        "field": "a",
        "type": "nominal",
        "sort": list(experts),
        "axis": {"title": None, "orient": "top", "labelAngle": -35, "ticks": False, "domain": False},
    }
    y = {
        "field": "b",
        "type": "nominal",
        "sort": list(experts),
        "axis": {"title": None, "ticks": False, "domain": False},
    }
    tooltip = [
        {"field": "a", "title": "expert"},
        {"field": "b", "title": "and"},
        {"field": "share", "title": "overlap", "format": ".1%"},
    ]
    spec = _cells(rows, x, y, {"value": "var(--accent)"}, tooltip, len(experts) <= MOST_LABELLED, ".0%")
    return {**spec, "height": (CELL + 8) * len(experts)}


def _load(figures: ReportData, routing: RoutingData) -> Spec:
    experts = list(routing.load)
    rows = [
        {"expert": expert, "share": sum(layers) / len(layers), "least": min(layers), "most": max(layers)}
        for expert, layers in routing.load.items()
        if layers
    ]
    y = {
        "field": "expert",
        "type": "nominal",
        "sort": experts,
        "axis": {"title": None, "ticks": False, "domain": False},
    }
    x = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domainMin": 0},
        "axis": {"title": "share of all tokens", "format": ".0%", "tickCount": 5},
    }
    bars = {
        "mark": {"type": "bar", "cornerRadiusEnd": 3, "height": {"band": 0.62}},
        "encoding": {
            "y": y,
            "x": x,
            "color": {
                "field": "expert",
                "type": "nominal",
                "scale": colour_scale(experts, figures.experts),
                "legend": None,
            },
            "tooltip": [
                {"field": "expert", "title": "expert"},
                {"field": "share", "title": "mean over layers", "format": ".1%"},
                {"field": "least", "title": "least in a layer", "format": ".1%"},
                {"field": "most", "title": "most in a layer", "format": ".1%"},
            ],
        },
    }
    even = {
        "data": {"values": [{"even": 1 / len(rows)}]},
        "mark": {"type": "rule", "strokeDash": [4, 4], "stroke": "var(--text)"},
        "encoding": {
            "x": {"field": "even", "type": "quantitative"},
            "tooltip": [{"field": "even", "title": "an even share", "format": ".1%"}],
        },
    }
    return {"data": {"values": rows}, "layer": [bars, even], "height": (CELL + 6) * len(rows)}


def _scores(figures: ReportData) -> Spec:
    domains = list(dict.fromkeys(domain for row in figures.scores for domain in row.score))
    names = [row.name for row in figures.scores if row.score]
    points = [
        {"model": row.name, "domain": domain, "score": score}
        for row in figures.scores
        for domain, score in row.score.items()
    ]
    means = [{"model": row.name, "average": row.average} for row in figures.scores if row.average is not None]
    y = {
        "field": "model",
        "type": "nominal",
        "sort": names,
        "axis": {"title": None, "ticks": False, "domain": False, "grid": True, "labelLimit": 150},
    }
    axis = {"title": "normalised score (100: each domain's own expert)", "tickCount": 6}
    x = {"field": "score", "type": "quantitative", "scale": {"zero": False, "nice": True}, "axis": axis}
    legend = {"title": None, "orient": "bottom", "columns": 3, "symbolType": "circle", "symbolStrokeWidth": 0}
    dots = {
        "mark": {"type": "circle", "size": 90, "opacity": 0.9},
        "encoding": {
            "y": y,
            "x": x,
            "color": {
                "field": "domain",
                "type": "nominal",
                "scale": colour_scale(domains, figures.experts),
                "legend": legend,
            },
            "tooltip": [
                {"field": "model", "title": "model"},
                {"field": "domain", "title": "domain"},
                {"field": "score", "title": "score", "format": ".2f"},
            ],
        },
    }
    ticks = {
        "data": {"values": means},
        "mark": {"type": "tick", "thickness": 3, "size": 20, "color": "var(--text)"},
        "encoding": {
            "y": y,
            "x": {"field": "average", "type": "quantitative"},
            "tooltip": [
                {"field": "model", "title": "model"},
                {"field": "average", "title": "average", "format": ".2f"},
            ],
        },
    }
    return {"data": {"values": points}, "layer": [dots, ticks], "height": (CELL + 4) * len(names)}


_COLUMNS = ("base", "expert", "composition", "trained")


def _lineage(figures: ReportData) -> Spec:
    """Return the graph of the lineage from left to right: bases, experts, composition, trained compositions."""
    columns = [[node for node in figures.lineage if node.kind == kind] for kind in _COLUMNS]
    columns = [column for column in columns if column]
    rows, most = {}, max(len(column) for column in columns)
    order = {member.digest: number for number, member in enumerate(figures.members)}
    for column_index, column in enumerate(columns):
        for index, node in enumerate(column):
            shade = f"var(--e{order[node.id]})" if node.id in order else "var(--accent)"
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
        "mark": {"type": "rule", "stroke": "var(--muted)", "strokeWidth": 1.5, "opacity": 0.55},
        "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}},
    }
    dots = {
        "mark": {"type": "circle", "size": 260, "opacity": 1, "stroke": "var(--panel)", "strokeWidth": 3},
        "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
    }
    text: Spec = {"type": "text", "dy": 21, "fontSize": 12, "limit": 130}
    under = {
        "mark": {**text, "color": "var(--panel)", "stroke": "var(--panel)", "strokeWidth": 5},
        "encoding": {"x": x, "y": y, "text": {"field": "label"}},
    }
    labels = {
        "mark": {**text, "color": "var(--text)"},
        "encoding": {"x": x, "y": y, "text": {"field": "label"}, "tooltip": tooltip},
    }
    layers = [lines, under, dots, labels]
    return {"data": {"values": list(rows.values())}, "layer": layers, "height": max(120, 62 * most)}
