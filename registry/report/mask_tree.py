"""Tree of the masks of a SIMoE's experts: which of them join at which overlap."""

from collections.abc import Iterator, Mapping, Sequence

from registry.errors import RegError
from registry.report.data import MaskJoin
from registry.report.theme import Spec, expert_colour

ROW = 34
"""Height of an expert's row, in pixels."""


def mask_joins(experts: Sequence[str], overlap: Sequence[tuple[str, str, float]]) -> tuple[MaskJoin, ...]:
    """Return the joins of average linkage over 1 - overlap (Sokal and Michener 1958), the most alike first.

    Args:
        experts: the names.
        overlap: (expert, expert, overlap from 0 to 1) of every two of them, in the order of `combinations`.

    Raises:
        RegError: scipy is not installed.
    """
    if not overlap:
        return ()
    try:
        from scipy.cluster.hierarchy import linkage
    except ImportError as error:
        raise RegError("it needs scipy, which is not installed", "run: pip install scipy") from error
    groups: list[tuple[str, ...]] = [(name,) for name in experts]
    joins: list[MaskJoin] = []
    for first, second, distance, _ in linkage([1 - share for _, _, share in overlap], method="average").tolist():
        one, other = sorted((groups[int(first)], groups[int(second)]))
        join = MaskJoin(one, other, max(0.0, 1 - distance))
        joins.append(join)
        groups.append(join.first + join.second)
    return tuple(joins)


def mask_tree(colours: Mapping[str, int], joins: Sequence[MaskJoin]) -> Spec:
    """Return the tree: experts at the left, where a mask overlaps with itself, and a line where two groups join."""
    order = joins[-1].first + joins[-1].second
    rows = {name: float(number) for number, name in enumerate(order)}
    leaves = [
        {"expert": name, "overlap": 1, "row": row, "colour": expert_colour(name, colours)} for name, row in rows.items()
    ]
    x = {
        "field": "overlap",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "reverse": True, "nice": False},
        "axis": {"title": "mean overlap of their masks", "format": ".0%", "tickCount": 5, "grid": False},
    }
    y = {
        "field": "row",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [-0.7, len(order) - 0.5], "reverse": True, "nice": False},
    }
    tooltip = [
        {"field": "first", "title": "experts"},
        {"field": "second", "title": "join"},
        {"field": "overlap", "title": "mean overlap", "format": ".1%"},
    ]
    lines = {
        "data": {"values": list(_lines(joins, rows))},
        "mark": {"type": "rule", "stroke": "var(--accent)", "strokeWidth": 2, "strokeCap": "round"},
        "encoding": {"x": x, "y": y, "x2": {"field": "end"}, "y2": {"field": "last"}, "tooltip": tooltip},
    }
    dots = {
        "mark": {"type": "circle", "size": 70, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": {"field": "colour", "type": "nominal", "scale": None}},
    }
    text = {"type": "text", "align": "left", "dx": 6, "dy": -8, "fontSize": 12}
    marks = (
        {
            **text,
            "color": "var(--surface)",
            "stroke": "var(--surface)",
            "strokeWidth": 4,
        },  # so that no line crosses a name
        {**text, "color": "var(--text)"},
    )
    names = [{"mark": mark, "encoding": {"x": x, "y": y, "text": {"field": "expert"}}} for mark in marks]
    return {"data": {"values": leaves}, "layer": [lines, *names, dots], "height": ROW * len(order)}


def _lines(joins: Sequence[MaskJoin], rows: dict[str, float]) -> Iterator[Spec]:
    """Yield the lines of each join: one from either group to the overlap at which they join, and one between them."""
    begin: dict[tuple[str, ...], tuple[float, float]] = {(name,): (1.0, row) for name, row in rows.items()}
    for join in joins:
        what = {"first": ", ".join(join.first), "second": ", ".join(join.second)}
        places = [begin[join.first], begin[join.second]]
        for overlap, row in places:
            yield {**what, "overlap": join.overlap, "end": overlap, "row": row, "last": row}
        ends = [row for _, row in places]
        yield {**what, "overlap": join.overlap, "end": join.overlap, "row": min(ends), "last": max(ends)}
        begin[join.first + join.second] = (join.overlap, sum(ends) / 2)
