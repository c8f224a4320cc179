"""Charts as Vega-Lite specifications; colours are CSS variables, so that one chart serves light and dark."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.io.display import printable
from registry.report.data import ReportData, RoutingData
from registry.report.line_charts import active_experts_curve, loss_curves
from registry.report.lineage_graph import lineage_graph
from registry.report.mask_tree import mask_tree
from registry.report.score_chart import score_chart
from registry.report.theme import CONFIG, Spec, colour_scale, linear_axis, ticks

CELL = 26
"""Height of a row, in pixels."""

MOST_LABELLED = 14
"""Number of columns up to which every cell of a heat map shows its value, and every layer its number."""

NUMBERED = 5
"""Of more layers, those divisible by it show their numbers: 26 of 128, which do not touch one another."""


def charts(figures: ReportData) -> dict[str, Spec]:
    """Return the available charts by their place in the page."""
    specs = {}
    if routing := figures.routing:
        for number, domain in enumerate(routing.shares if len(routing.layers) > 1 else ()):  # else as the confusion
            specs[f"routing-{number}"] = _routing(figures, routing, domain)
        specs["confusion"] = _confusion(figures, routing)
        specs["load"] = _load(figures, routing)
    if figures.overlap:
        specs["overlap"] = _overlap(figures.experts, figures.overlap)
    if figures.mask_overlap:
        specs["mask-overlap"] = _overlap(figures.experts, figures.mask_overlap)
    if figures.mask_joins:
        specs["mask-tree"] = mask_tree(figures.colours, figures.mask_joins)
    if (own := figures.row("composition")) and own.score:
        specs["scores"] = score_chart(figures, own)
    if len(figures.active_experts) > 1:
        specs["active"] = active_experts_curve(figures)
    if figures.trainings:
        specs["losses"] = loss_curves(figures.trainings, figures.colours)
    if figures.training:
        specs["training"] = loss_curves([figures.training], {}, "trained")
    if figures.lineage:
        specs["lineage"] = lineage_graph(figures)
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
    """Return a heat map; opacity grows with the share, and cells below `least` have no label.

    It skips the middle, where neither light nor dark text could be read.
    """
    strength = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 0.5, 0.5001, 1], "range": [0.06, 0.36, 0.82, 1]},
        "legend": None,
    }
    cells = {
        "mark": {"type": "rect", "cornerRadius": 3, "stroke": "var(--surface)", "strokeWidth": 2},
        "encoding": {"x": x, "y": y, "color": colour, "opacity": strength, "tooltip": list(tooltip)},
    }
    text = {
        "transform": [{"filter": f"datum.share >= {least}"}],
        "mark": {"type": "text", "fontSize": 11, "tooltip": None},
        "encoding": {
            "x": x,
            "y": y,
            "text": {"field": "share", "type": "quantitative", "format": form},
            "color": {"condition": {"test": "datum.share > 0.5", "value": "var(--on-heat)"}, "value": "var(--text)"},
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
    labelled = len(routing.layers) <= MOST_LABELLED
    numbered = [str(layer) for layer in routing.layers if labelled or layer % NUMBERED == 0]
    x = {
        "field": "layer",
        "type": "ordinal",
        "sort": None,
        "axis": {"title": "layer", "labelAngle": 0, "orient": "bottom", "values": numbered, "labelOverlap": True},
    }
    y = {
        "field": "expert",
        "type": "nominal",
        "sort": list(experts),
        "axis": {"title": None, "ticks": False, "domain": False},
    }
    colour = {"field": "expert", "type": "nominal", "scale": colour_scale(experts, figures.colours), "legend": None}
    tooltip = [
        {"field": "layer", "title": "layer"},
        {"field": "expert", "title": "expert"},
        {"field": "share", "title": f"of {domain}", "format": ".1%"},
    ]
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
    colour = {"field": "expert", "type": "nominal", "scale": colour_scale(experts, figures.colours), "legend": None}
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
    spec = _cells(rows, x, y, {"value": "var(--heat)"}, tooltip, len(experts) <= MOST_LABELLED, ".0%")
    return {**spec, "height": (CELL + 8) * len(experts)}


def _load(figures: ReportData, routing: RoutingData) -> Spec:
    experts = list(routing.load)
    rows: list[dict[str, Any]] = [
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
    x = linear_axis("share", "share of all tokens", ticks(0, max(row["share"] for row in rows)), share=True)
    bars = {
        "mark": {"type": "bar", "cornerRadiusEnd": 3, "height": {"band": 0.62}},
        "encoding": {
            "y": y,
            "x": x,
            "color": {
                "field": "expert",
                "type": "nominal",
                "scale": colour_scale(experts, figures.colours),
                "legend": None,
            },
            "tooltip": [
                {"field": "expert", "title": "expert"},
                {"field": "share", "title": "mean over layers", "format": ".1%"},
                {"field": "least", "title": "lowest in a layer", "format": ".1%"},
                {"field": "most", "title": "highest in a layer", "format": ".1%"},
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
