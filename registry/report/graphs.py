"""Graph of a composition's lineage, and tree of its experts' masks, as Vega-Lite specifications."""

from collections.abc import Iterator, Mapping, Sequence

from registry.errors import RegError
from registry.report.data import MaskJoin, ReportData
from registry.report.theme import OWN_COLOUR, Spec, chart, expert_colour, layer, quantity, tips

ROW = 34  # height of an expert's row in the tree, in pixels

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
            rows[node.id] = {
                "x": column_index,
                "y": most - (index + 0.5) * most / len(column),
                "label": node.label,
                "kind": node.kind,
                "told": node.told,
                "colour": "var(--accent)" if made else expert_colour(names.get(node.id, ""), figures.colours),
            }
    edges = [
        {"x": rows[source]["x"], "y": rows[source]["y"], "x2": rows[node.id]["x"], "y2": rows[node.id]["y"]}
        for node in figures.lineage
        for source in node.of
        if source in rows
    ]
    wide = {"domain": [-0.45, len(columns) - 1 + 0.45], "nice": False}
    x = quantity("x", axis=None, scale=wide)
    y = quantity("y", axis=None, scale={"domain": [0, most], "nice": False})
    tooltip = tips(("label", "name"), ("kind", "kind"), ("told", "details"))
    line = {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}}
    dot = {"x": x, "y": y, "color": OWN_COLOUR, "tooltip": tooltip}
    widest = f"min(130, width / {len(columns)})"  # so that names side by side do not touch on a phone
    text: Spec = {"dy": 21, "fontSize": 12, "limit": {"expr": widest}}
    name = {"x": x, "y": y, "text": {"field": "label"}}
    layers = [
        layer("rule", line, values=edges, stroke="var(--soft)", strokeWidth=1.5, opacity=0.55),
        layer("text", name, **text, color="var(--surface)", stroke="var(--surface)", strokeWidth=5),
        layer("circle", dot, size=260, opacity=1, stroke="var(--surface)", strokeWidth=3),
        layer("text", {**name, "tooltip": tooltip}, **text, color="var(--text)"),
    ]
    return chart(rows.values(), layers, max(120, 62 * most))


def mask_joins(experts: Sequence[str], overlap: Sequence[tuple[str, str, float]]) -> tuple[MaskJoin, ...]:
    """Return the joins of average linkage over 1 - overlap (Sokal and Michener 1958), the most alike first.

    `overlap` is (expert, expert, overlap from 0 to 1) of every two experts, in the order of `combinations` (RegError:
    scipy is not installed).
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
        joins.append(MaskJoin(one, other, max(0.0, 1 - distance)))
        groups.append(one + other)
    return tuple(joins)


def mask_tree(colours: Mapping[str, int], joins: Sequence[MaskJoin]) -> Spec:
    """Return the tree: experts at the left, where a mask overlaps with itself, and a line where two groups join."""
    order = joins[-1].first + joins[-1].second
    rows = {name: float(number) for number, name in enumerate(order)}
    leaves = [
        {"expert": name, "overlap": 1, "row": row, "colour": expert_colour(name, colours)} for name, row in rows.items()
    ]
    axis = {"title": "mean overlap of their masks", "format": ".0%", "tickCount": 5, "grid": False}
    x = quantity("overlap", scale={"domain": [0, 1], "reverse": True, "nice": False}, axis=axis)
    high = {"domain": [-0.7, len(order) - 0.5], "reverse": True, "nice": False}
    y = quantity("row", axis=None, scale=high)
    tooltip = tips(("first", "experts"), ("second", "join"), ("overlap", "mean overlap", ".1%"))
    line = {"x": x, "y": y, "x2": {"field": "end"}, "y2": {"field": "last"}, "tooltip": tooltip}
    name = {"x": x, "y": y, "text": {"field": "expert"}}
    text: Spec = {"align": "left", "dx": 6, "dy": -8, "fontSize": 12}
    edge: Spec = {"color": "var(--surface)", "stroke": "var(--surface)", "strokeWidth": 4}  # no line crosses a name
    layers = [
        layer("rule", line, values=_lines(joins, rows), stroke="var(--accent)", strokeWidth=2, strokeCap="round"),
        layer("text", name, **text, **edge),
        layer("text", name, **text, color="var(--text)"),
        layer("circle", {"x": x, "y": y, "color": OWN_COLOUR}, size=70, opacity=1),
    ]
    return chart(leaves, layers, ROW * len(order))


def _lines(joins: Sequence[MaskJoin], rows: dict[str, float]) -> Iterator[Spec]:
    """Yield the lines of each join: one from either group to the overlap at which they join, and one between them."""
    begin: dict[tuple[str, ...], tuple[float, float]] = {(name,): (1.0, row) for name, row in rows.items()}
    for join in joins:
        what = {"first": ", ".join(join.first), "second": ", ".join(join.second)}
        groups = [begin[join.first], begin[join.second]]
        for overlap, row in groups:
            yield {**what, "overlap": join.overlap, "end": overlap, "row": row, "last": row}
        ends = [row for _, row in groups]
        yield {**what, "overlap": join.overlap, "end": join.overlap, "row": min(ends), "last": max(ends)}
        begin[join.first + join.second] = (join.overlap, sum(ends) / 2)
