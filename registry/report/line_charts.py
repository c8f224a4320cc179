"""Line charts as Vega-Lite specifications: ridge strengths, active experts, losses of trainings."""

from collections.abc import Sequence

from registry.report.data import ReportData, Training
from registry.report.theme import Spec, colour_scale

_LEGEND = {"title": None, "orient": "bottom", "columns": 3, "symbolType": "circle", "symbolStrokeWidth": 0}


def ridge_curves(figures: ReportData) -> Spec:
    """Return held-out errors over the ridge strength, one line per layer."""
    rows = [
        {"layer": curve.layer, "lam": lam, "error": error, "accuracy": accuracy, "used": lam == curve.used}
        for curve in figures.curves
        for lam, error, accuracy in zip(curve.lams, curve.errors, curve.accuracies, strict=True)
    ]
    used = [{"used": lam} for lam in sorted({curve.used for curve in figures.curves})]
    x = {
        "field": "lam",
        "type": "quantitative",
        "scale": {"type": "log"},
        "axis": {"title": "ridge strength lam", "format": "~e", "tickCount": 6, "grid": False},
    }
    y = {
        "field": "error",
        "type": "quantitative",
        "scale": {"zero": True},
        "axis": {"title": "held-out error", "tickCount": 5},
    }
    strength = {
        "field": "layer",
        "type": "quantitative",
        "scale": {"range": [0.3, 1]},
        "legend": {
            "title": "layer",
            "orient": "bottom",
            "values": sorted({curve.layer for curve in figures.curves}),
            "format": "d",
            "symbolType": "circle",
            "symbolFillColor": "var(--accent)",
            "symbolStrokeWidth": 0,
        },
    }
    tooltip = [
        {"field": "layer", "title": "layer"},
        {"field": "lam", "title": "lam", "format": "~e"},
        {"field": "error", "title": "held-out error", "format": ".4f"},
        {"field": "accuracy", "title": "accuracy on held-out folds", "format": ".2%"},
    ]
    detail = {"field": "layer", "type": "nominal"}
    lines = {
        "mark": {"type": "line", "stroke": "var(--accent)", "strokeWidth": 2},
        "encoding": {"x": x, "y": y, "detail": detail, "opacity": strength},
    }
    dots = {
        "mark": {"type": "circle", "color": "var(--accent)", "size": 36},
        "encoding": {"x": x, "y": y, "opacity": strength, "tooltip": tooltip},
    }
    chosen = {
        "data": {"values": used},
        "mark": {"type": "rule", "strokeDash": [4, 4], "stroke": "var(--text)"},
        "encoding": {
            "x": {"field": "used", "type": "quantitative"},
            "tooltip": [{"field": "used", "title": "lam of this composition", "format": "~e"}],
        },
    }
    return {"data": {"values": rows}, "layer": [lines, dots, chosen], "height": 260}


def active_experts_curve(figures: ReportData) -> Spec:
    """Return scores over the number of experts per token, one line per domain; perplexities where there is no score."""
    rows = figures.active_experts
    scored = all(row.score.keys() == row.perplexity.keys() for row in rows)
    title = "normalised score" if scored else "perplexity"
    points = [
        {"count": row.experts_per_token, "domain": domain, "value": value, "parameters": row.active_parameters}
        for row in rows
        for domain, value in (row.score if scored else row.perplexity).items()
    ]
    means = [
        {"count": row.experts_per_token, "value": row.average, "parameters": row.active_parameters}
        for row in rows
        if row.average is not None
    ]
    domains = list(dict.fromkeys(str(point["domain"]) for point in points))
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
    y = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": title, "tickCount": 5},
    }
    colour = {
        "field": "domain",
        "type": "nominal",
        "scale": colour_scale(domains, figures.experts),
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
    return {"data": {"values": points}, "layer": [lines, dots, mean, mean_dots], "height": 260}


def loss_curves(trainings: Sequence[Training], experts: Sequence[str], what: str = "expert") -> Spec:
    """Return losses of trainings over their steps, one line each, and those on held-out text at both ends.

    Args:
        trainings: of experts, or that of the composition.
        experts: the members' names.
        what: what the trainings are of.
    """
    points = [
        {"expert": training.name, "step": step, "loss": loss}
        for training in trainings
        for step, loss in zip(training.at, training.loss, strict=True)
    ]
    ends = [
        {"expert": training.name, "step": step, "loss": loss, "when": when}
        for training in trainings
        for step, loss, when in ((0, training.before, "before"), (training.steps, training.after, "after"))
    ]
    x = {
        "field": "step",
        "type": "quantitative",
        "scale": {"nice": False, "zero": True},
        "axis": {"title": "step", "tickCount": 6, "format": ",d", "grid": False},
    }
    y = {
        "field": "loss",
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": "loss, nats per token", "tickCount": 5},
    }
    names = [training.name for training in trainings]
    colour = {"field": "expert", "type": "nominal", "scale": colour_scale(names, experts), "legend": _LEGEND}
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
