"""Charts as Vega-Lite specifications; colours are CSS variables, so that one chart serves light and dark."""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.io.display import printable
from registry.report.data import ReportData, RoutingData, ScoreRow, Training
from registry.report.graphs import lineage_graph, mask_tree
from registry.report.score_words import interval_text
from registry.report.theme import (
    CONFIG,
    OWN_COLOUR,
    Spec,
    chart,
    colours_of,
    expert_colour,
    layer,
    linear_axis,
    names_axis,
    quantity,
    ticks,
    tips,
)

Rows = list[dict[str, Any]]

CELL = 26  # height of a row of a heat map, in pixels
SCORE_ROW = 38  # height of a domain's row among the scores, in pixels
CURVES = 260  # height of curves, in pixels
MEAN = "all domains"  # the row of the averages among the scores
MOST_LABELLED = 14  # columns up to which every cell of a heat map shows its value, and every layer its number
NUMBERED = 5  # of more layers, those divisible by it show their numbers: 26 of 128, which do not touch one another

_AUTOSIZE = {"type": "fit-x", "contains": "padding"}
_HOLLOW: Spec = {"filled": False, "fill": "var(--surface)", "stroke": "var(--soft)", "strokeWidth": 2, "opacity": 1}
_DOTS = {"symbolType": "circle", "symbolStrokeWidth": 0, "symbolOpacity": 1}
_LEGEND = {"title": None, "orient": "bottom", "columns": 3, **_DOTS}


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
        specs["active"] = _active_experts(figures)
    if figures.trainings:
        specs["losses"] = _losses(figures.trainings, figures.colours)
    if figures.training:
        specs["training"] = _losses([figures.training], {}, "trained")
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


def _cells(
    rows: Sequence[Spec],
    x: Spec,
    y: Spec,
    colour: Spec,
    tooltip: Sequence[Spec],
    height: int,
    labels: str,
    least: float = 0.0,
) -> Spec:
    """Return a heat map, whose opacity grows with the share; cells of `least` and more have labels of this format."""
    # opacity skips the middle, where neither light nor dark text could be read
    scale = {"domain": [0, 0.5, 0.5001, 1], "range": [0.06, 0.36, 0.82, 1]}
    shown = {"x": x, "y": y, "color": colour, "opacity": quantity("share", scale=scale, legend=None)}
    layers = [layer("rect", {**shown, "tooltip": tooltip}, cornerRadius=3, stroke="var(--surface)", strokeWidth=2)]
    if labels:
        ink = {"condition": {"test": "datum.share > 0.5", "value": "var(--on-heat)"}, "value": "var(--text)"}
        text = {"x": x, "y": y, "text": quantity("share", format=labels), "color": ink}
        layers.append(layer("text", text, where=f"datum.share >= {least}", fontSize=11, tooltip=None))
    return chart(rows, layers, height)


def _routing(figures: ReportData, routing: RoutingData, domain: str) -> Spec:
    experts = figures.experts
    rows = [
        {"layer": str(layer), "expert": expert, "share": routing.shares[domain][expert][index]}
        for expert in routing.shares[domain]
        for index, layer in enumerate(routing.layers)
    ]
    labelled = len(routing.layers) <= MOST_LABELLED
    numbered = [str(layer) for layer in routing.layers if labelled or layer % NUMBERED == 0]
    axis = {"title": "layer", "labelAngle": 0, "orient": "bottom", "values": numbered, "labelOverlap": True}
    x = {"field": "layer", "type": "ordinal", "sort": None, "axis": axis}
    y = names_axis("expert", experts)
    colour = colours_of("expert", experts, figures.colours, None)
    tooltip = tips(("layer", "layer"), ("expert", "expert"), ("share", f"of {domain}", ".1%"))
    return _cells(rows, x, y, colour, tooltip, CELL * len(experts), ".0%" if labelled else "", least=0.005)


def _confusion(figures: ReportData, routing: RoutingData) -> Spec:
    experts = figures.experts
    rows = [
        {"domain": domain, "expert": expert, "share": routing.mean(domain, expert)}
        for domain in routing.shares
        for expert in routing.shares[domain]
    ]
    x = names_axis("expert", experts, "goes to expert", orient="top", labelAngle=-35)
    y = names_axis("domain", routing.shares, "text of")
    colour = colours_of("expert", experts, figures.colours, None)
    tooltip = tips(("domain", "text of"), ("expert", "goes to"), ("share", "share", ".1%"))
    labels = ".1%" if len(experts) <= MOST_LABELLED else ""
    return _cells(rows, x, y, colour, tooltip, (CELL + 8) * len(routing.shares), labels)


def _overlap(experts: Sequence[str], overlap: Sequence[tuple[str, str, float]]) -> Spec:
    rows = [
        {"a": a, "b": b, "share": share}
        for first, second, share in overlap
        for a, b in ((first, second), (second, first))
    ]
    x, y = names_axis("a", experts, orient="top", labelAngle=-35), names_axis("b", experts)
    tooltip = tips(("a", "expert"), ("b", "and"), ("share", "overlap", ".1%"))
    labels = ".0%" if len(experts) <= MOST_LABELLED else ""
    return _cells(rows, x, y, {"value": "var(--heat)"}, tooltip, (CELL + 8) * len(experts), labels)


def _load(figures: ReportData, routing: RoutingData) -> Spec:
    experts = list(routing.load)
    rows: Rows = [
        {"expert": expert, "share": share, "least": min(routing.load[expert]), "most": max(routing.load[expert])}
        for expert, share in routing.overall_load.items()
    ]
    of_layers = ("share", "mean over layers"), ("least", "lowest in a layer"), ("most", "highest in a layer")
    bars = {
        "y": names_axis("expert", experts),
        "x": linear_axis("share", "share of all tokens", ticks(0, max(row["share"] for row in rows)), share=True),
        "color": colours_of("expert", experts, figures.colours, None),
        "tooltip": tips(("expert", "expert"), *((field, title, ".1%") for field, title in of_layers)),
    }
    even = {"x": quantity("even"), "tooltip": tips(("even", "an even share", ".1%"))}
    layers = [
        layer("bar", bars, cornerRadiusEnd=3, height={"band": 0.62}),
        layer("rule", even, values=[{"even": 1 / len(rows)}], strokeDash=[4, 4], stroke="var(--text)"),
    ]
    return chart(rows, layers, (CELL + 6) * len(rows))


def score_chart(figures: ReportData, own: ScoreRow) -> Spec:
    """Return a dot for each domain's score with its interval; base model, average and oracle are marks beside it."""
    references = [(kind, row) for kind in ("base", "average", "oracle") if (row := figures.row(kind))]
    domains = [*([MEAN] if len(own.score) > 1 and own.average is not None else []), *own.score]
    rows: Rows = []
    for domain in domains:
        mean = domain == MEAN
        values = {kind: row.average if mean else row.score.get(domain) for kind, row in [("own", own), *references]}
        known = [value for value in values.values() if value is not None]
        colour = "var(--text)" if mean else expert_colour(domain, figures.colours)
        rows.append({"domain": domain, "colour": colour, "low": min(known), "high": max(known), **values})
        ends = own.average_interval if mean else own.interval.get(domain)
        if ends is not None:
            rows[-1] |= {"from": ends[0], "to": ends[1], "interval": interval_text(ends)}
    shown = [row[key] for row in rows for key in ("low", "high", "from", "to") if key in row]
    x = linear_axis("own", "score", ticks(min(*shown, 100.0), max(*shown, 100.0)), tickSize=4)
    y = names_axis("domain", domains)
    y["axis"]["labelPadding"] = 8
    names = {"own": figures.kind, "base": "base model", "average": "averaged weights", "oracle": "perfect routing"}
    drawn = {"own", *dict(references)}
    tooltip = tips(("domain", "domain"), *((kind, name, ".1f") for kind, name in names.items() if kind in drawn))
    tooltip += tips(("interval", "95 % interval")) if any("interval" in row for row in rows) else []

    def at(field: str, **more: Spec) -> Spec:
        return {"x": {**x, "field": field}, "y": y, "tooltip": tooltip, **more}

    def reference(kind: str, shape: str, size: int) -> Spec:
        return layer("point", at(kind), where=f"isValid(datum.{kind})", shape=shape, size=size, **_HOLLOW)

    has_score = "isValid(datum.own)"
    span = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
    whisker = at("from", x2={"field": "to"}, color=OWN_COLOUR)
    dot = at("own", color=OWN_COLOUR)
    label = at("own", text=quantity("own", format=".1f"))
    hundred: Spec = {"stroke": "var(--text)", "strokeWidth": 1, "strokeDash": [2, 3]}
    layers = [
        layer("rule", {"x": x}, values=[{"own": 100}], **hundred),
        layer("rule", span, stroke="var(--edge)", strokeWidth=2, strokeCap="round"),
        layer("rule", whisker, where="isValid(datum.interval)", strokeWidth=7, strokeCap="butt", opacity=0.4),
        reference("base", "square", 60),
        reference("average", "circle", 70),
        layer("circle", dot, where=has_score, size=190, opacity=1, stroke="var(--surface)", strokeWidth=2),
        reference("oracle", "diamond", 50),  # often in a dot: above it
        layer("text", label, where=has_score, dy=-15, fontSize=11, fontWeight=600, color="var(--text)"),
    ]
    return chart(rows, layers, SCORE_ROW * len(domains))


def _active_experts(figures: ReportData) -> Spec:
    """Return scores over the number of experts per token, one line per domain; perplexities where there is no score."""
    rows = figures.active_experts
    scored = all(row.score.keys() == row.perplexity.keys() for row in rows)
    title = "normalised score" if scored else "perplexity"
    points, means = Rows(), Rows()
    for row in rows:
        at, by = {"count": row.experts_per_token}, {"parameters": row.active_parameters}
        for domain, value in (row.score if scored else row.perplexity).items():
            points.append({**at, "domain": domain, "value": value, **by})
        if row.average is not None:
            means.append({**at, "value": row.average, **by})
    references: Rows = [
        {"value": score, "name": name}
        for kind, name in (("average", "averaged weights"), ("oracle", "perfect routing"))
        if scored and (score := figures.score_of(kind)) is not None
    ]
    drawn = [float(row["value"]) for row in (*points, *means, *references)] + ([100.0] if scored else [])
    counts = [row.experts_per_token for row in rows]
    axis = {"title": "experts per token", "values": counts, "format": "d", "grid": False}
    x = quantity("count", scale={"nice": False, "zero": False, "padding": 12}, axis=axis)
    y = linear_axis("value", title, ticks(min(drawn), max(drawn)))
    colour = colours_of("domain", dict.fromkeys(point["domain"] for point in points), figures.colours, _LEGEND)
    number, parameters, figure = tips(
        ("count", "experts per token"), ("parameters", "parameters per token", ","), ("value", title, ".2f")
    )
    of_mean = [number, parameters, {**figure, "title": "average score"}]
    of_domain = [*tips(("domain", "domain")), number, parameters, figure]
    by_count, of_domains = {"x": x, "y": y}, {"x": x, "y": y, "color": colour}
    layers = [
        layer("line", of_domains, strokeWidth=2),
        layer("circle", {**of_domains, "tooltip": of_domain}, size=60, opacity=1),
        layer("line", by_count, values=means, stroke="var(--text)", strokeWidth=2, strokeDash=[4, 4]),
        layer("circle", {**by_count, "tooltip": of_mean}, values=means, size=60, color="var(--text)", opacity=1),
    ]
    if references:
        line = {"y": y, "tooltip": [{"field": "name"}, {"field": "value", "format": ".2f"}]}
        name = {"x": {"value": 4}, "y": y, "text": {"field": "name"}}
        layers += [
            layer("rule", line, values=references, stroke="var(--soft)", strokeWidth=1, strokeDash=[1, 3]),
            layer("text", name, values=references, align="left", dy=-6, fontSize=11, color="var(--soft)"),
        ]
    return chart(points, layers, CURVES)


def _losses(trainings: Sequence[Training], colours: Mapping[str, int], what: str = "expert") -> Spec:
    """Return losses of trainings of `what` over their steps, one line each, and at both ends those on held-out text."""
    points, ends = Rows(), Rows()
    for one in trainings:
        curve = zip(one.at, one.loss, strict=True)
        points += [{"expert": one.name, "step": step, "loss": loss} for step, loss in curve]
        ends.append({"expert": one.name, "step": 0, "loss": one.before, "when": "before"})
        ends.append({"expert": one.name, "step": one.steps, "loss": one.after, "when": "after"})
    losses = [float(row["loss"]) for row in (*points, *ends)]
    steps = ticks(0, max(training.steps for training in trainings), whole=True)
    x = linear_axis("step", "step", steps, grid=False)
    y = linear_axis("loss", "loss, nats per token", ticks(min(losses), max(losses)))
    encoding = {"x": x, "y": y, "color": colours_of("expert", [one.name for one in trainings], colours, _LEGEND)}
    name, loss = ("expert", what), ("loss", "loss", ".4f")
    of_point, of_end = tips(name, ("step", "step", ",.0f"), loss), tips(name, ("when", "held-out text, training"), loss)
    held_out: Spec = {"shape": "diamond", "filled": True, "size": 110, "opacity": 1}
    layers = [
        layer("line", encoding, strokeWidth=1.5),
        layer("circle", {**encoding, "tooltip": of_point}, size=16, opacity=0.6),
        layer("point", {**encoding, "tooltip": of_end}, values=ends, **held_out),
    ]
    return chart(points, layers, CURVES)
