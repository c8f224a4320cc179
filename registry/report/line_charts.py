"""Line charts as Vega-Lite specifications: active experts, losses of trainings."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.report.data import ReportData, Training
from registry.report.theme import Spec, colour_scale, linear_axis, ticks

_LEGEND = {
    "title": None,
    "orient": "bottom",
    "columns": 3,
    "symbolType": "circle",
    "symbolStrokeWidth": 0,
    "symbolOpacity": 1,
}


def active_experts_curve(figures: ReportData) -> Spec:
    """Return scores over the number of experts per token, one line per domain; perplexities where there is no score."""
    rows = figures.active_experts
    scored = all(row.score.keys() == row.perplexity.keys() for row in rows)
    title = "normalised score" if scored else "perplexity"
    points: list[dict[str, Any]] = [
        {"count": row.experts_per_token, "domain": domain, "value": value, "parameters": row.active_parameters}
        for row in rows
        for domain, value in (row.score if scored else row.perplexity).items()
    ]
    means: list[dict[str, Any]] = [
        {"count": row.experts_per_token, "value": row.average, "parameters": row.active_parameters}
        for row in rows
        if row.average is not None
    ]
    domains = list(dict.fromkeys(str(point["domain"]) for point in points))
    references: list[dict[str, Any]] = [
        {"value": value, "name": name}
        for kind, name in (("average", "averaged weights"), ("oracle", "perfect routing"))
        if scored and (value := figures.score_of(kind)) is not None
    ]
    drawn = [float(row["value"]) for row in (*points, *means, *references)] + ([100.0] if scored else [])
    x = {
        "field": "count",
        "type": "quantitative",
        "scale": {"nice": False, "zero": False, "padding": 12},
        "axis": {
            "title": "experts per token",
            "values": [row.experts_per_token for row in rows],
            "format": "d",
            "grid": False,
        },
    }
    y = linear_axis("value", title, ticks(min(drawn), max(drawn)))
    colour = {
        "field": "domain",
        "type": "nominal",
        "scale": colour_scale(domains, figures.colours),
        "legend": _LEGEND,
    }
    tooltip = [
        {"field": "count", "title": "experts per token"},
        {"field": "parameters", "title": "parameters per token", "format": ","},
        {"field": "value", "title": title, "format": ".2f"},
    ]
    lines = {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": colour}}
    dots = {
        "mark": {"type": "circle", "size": 60, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "tooltip": [{"field": "domain", "title": "domain"}, *tooltip],
        },
    }
    mean = {
        "data": {"values": means},
        "mark": {"type": "line", "stroke": "var(--text)", "strokeWidth": 2, "strokeDash": [4, 4]},
        "encoding": {"x": x, "y": y},
    }
    mean_dots = {
        "data": {"values": means},
        "mark": {"type": "circle", "size": 60, "color": "var(--text)", "opacity": 1},
        "encoding": {"x": x, "y": y, "tooltip": [*tooltip[:2], {**tooltip[2], "title": "average score"}]},
    }
    rules = {
        "data": {"values": references},
        "mark": {"type": "rule", "stroke": "var(--soft)", "strokeWidth": 1, "strokeDash": [1, 3]},
        "encoding": {"y": y, "tooltip": [{"field": "name"}, {"field": "value", "format": ".2f"}]},
    }
    names = {
        "data": {"values": references},
        "mark": {"type": "text", "align": "left", "dy": -6, "fontSize": 11, "color": "var(--soft)"},
        "encoding": {"x": {"value": 4}, "y": y, "text": {"field": "name"}},
    }
    layers = [lines, dots, mean, mean_dots, *([rules, names] if references else [])]
    return {"data": {"values": points}, "layer": layers, "height": 260}


def loss_curves(trainings: Sequence[Training], colours: Mapping[str, int], what: str = "expert") -> Spec:
    """Return losses of trainings over their steps, one line each, and those on held-out text at both ends.

    Args:
        trainings: of experts, or that of the composition.
        colours: the members' colours.
        what: what the trainings are of.
    """
    points: list[dict[str, Any]] = [
        {"expert": training.name, "step": step, "loss": loss}
        for training in trainings
        for step, loss in zip(training.at, training.loss, strict=True)
    ]
    ends: list[dict[str, Any]] = [
        {"expert": training.name, "step": step, "loss": loss, "when": when}
        for training in trainings
        for step, loss, when in ((0, training.before, "before"), (training.steps, training.after, "after"))
    ]
    losses = [float(row["loss"]) for row in (*points, *ends)]
    steps = ticks(0, max(training.steps for training in trainings), whole=True)
    x = linear_axis("step", "step", steps, grid=False)
    y = linear_axis("loss", "loss, nats per token", ticks(min(losses), max(losses)))
    names = [training.name for training in trainings]
    colour = {"field": "expert", "type": "nominal", "scale": colour_scale(names, colours), "legend": _LEGEND}
    tooltip = [
        {"field": "expert", "title": what},
        {"field": "step", "title": "step", "format": ",.0f"},
        {"field": "loss", "title": "loss", "format": ".4f"},
    ]
    lines = {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": {"x": x, "y": y, "color": colour}}
    dots = {
        "mark": {"type": "circle", "size": 16, "opacity": 0.6},
        "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
    }
    held_out = {
        "data": {"values": ends},
        "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "tooltip": [
                tooltip[0],
                {"field": "when", "title": "held-out text, training"},
                {"field": "loss", "title": "loss", "format": ".4f"},
            ],
        },
    }
    return {"data": {"values": points}, "layer": [lines, dots, held_out], "height": 260}
