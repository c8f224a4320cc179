"""The theme of all charts: Vega-Lite's configuration, axes and colours, with the font and the tokens of the design."""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from registry.design import colour_class

Spec = dict[str, Any]

FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', Arial, sans-serif"
)
"""The design's `--sans`: text is measured before it is drawn, where no CSS variable counts."""

CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "aria": False,  # the figure around it has a label, and a table beside it
    "mark": {"aria": False},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--text)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domainColor": "var(--edge)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 120,
    },
    "legend": {"labelColor": "var(--text)", "titleColor": "var(--soft)", "labelFontSize": 12, "titleFontSize": 12},
}


OWN_COLOUR: Spec = {"field": "colour", "type": "nominal", "scale": None}
"""The encoding of rows that name their colour themselves."""


def expert_colour(name: str, colours: Mapping[str, int]) -> str:
    """Return the colour of a name, as CSS: that of its expert, or grey."""
    return f"var(--{colour_class(name, colours)})"


def colours_of(field: str, names: Iterable[str], colours: Mapping[str, int], legend: Spec | None) -> Spec:
    """Return the encoding of a field's colour: each expert has its own, other names are grey."""
    domain = list(names)
    scale = {"domain": domain, "range": [expert_colour(name, colours) for name in domain]}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def chart(values: Iterable[Mapping[str, Any]], layers: Sequence[Spec], height: float) -> Spec:
    """Return a chart: rows, the layers that show them, and its height in pixels."""
    return {"data": {"values": list(values)}, "layer": list(layers), "height": height}


def layer(
    kind: str, encoding: Spec, *, values: Iterable[Mapping[str, Any]] | None = None, where: str = "", **look: object
) -> Spec:
    """Return a layer: a mark with its look, of the chart's rows, of those `where` it holds, or of its own `values`."""
    spec: Spec = {} if values is None else {"data": {"values": list(values)}}
    if where:
        spec["transform"] = [{"filter": where}]
    return {**spec, "mark": {"type": kind, **look}, "encoding": encoding}


def quantity(field: str, **more: object) -> Spec:
    """Return the encoding of a field of numbers."""
    return {"field": field, "type": "quantitative", **more}


def names_axis(field: str, names: Iterable[str], title: str | None = None, **axis: object) -> Spec:
    """Return the encoding of an axis of names in their order, without ticks."""
    look = {"title": title, **axis, "ticks": False, "domain": False}
    return {"field": field, "type": "nominal", "sort": list(names), "axis": look}


def tips(*rows: tuple[str, ...]) -> list[Spec]:
    """Return the lines of a tooltip, each of a field, its title, and where it is a number its format."""
    return [dict(zip(("field", "title", "format"), row, strict=False)) for row in rows]


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return three to seven round numbers (two, if `whole`) in equal steps, from `low` or less to `high` or more."""
    if high == low:
        margin = abs(high) / 20 or 0.5
        low, high = low - margin, high + margin
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= span / 5 * (1 - 1e-9))
    step = max(1.0, math.ceil(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def linear_axis(field: str, title: str, values: Sequence[float], *, share: bool = False, **axis: object) -> Spec:
    """Return a quantitative encoding that spans exactly these ticks; with `share`, labelled as percentages."""
    scale = {"domain": [values[0], values[-1]], "nice": False, "zero": False}
    look = {"title": title, "values": list(values), "format": _label_format(values, share), **axis}
    return quantity(field, scale=scale, axis=look)


def _label_format(values: Sequence[float], share: bool) -> str:
    """Return the format with the fewest decimals that every value needs; without a number Vega rounds to fewer."""
    exact = [Decimal(repr(value)) * (100 if share else 1) for value in values]
    decimals = max(max(0, -int(value.normalize().as_tuple().exponent)) for value in exact)
    return f",.{decimals}{'%' if share else 'f'}"
