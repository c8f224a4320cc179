"""DUME's Fig. 2: mean score by k and by λ, and the figure with the curves of all papers."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.papers.bench import DUME, NEAR, WEIGHT_ONE, Bench, Figures, register_shared
from benchmarks.papers.statistics_curves import TEXT
from benchmarks.papers.tables import mean
from registry import Registry

SWEEPS: dict[str, list[Any]] = {"top_k": [1, 2, 3, 4, 5], "lam": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
ADDED_UP = ", weights add up to 1"
TITLES = {"top_k": "DUME: experts per token, k", "lam": "DUME: ridge strength λ"}
TITLES |= {f"{name}{ADDED_UP}": f"{title}; Σ = 1" for name, title in TITLES.items()}


def sweeps(bench: Bench) -> Figures:
    """Score DUME, and DUME with weights that add up to 1, at several k and λ."""
    tests, curves = bench.tests(NEAR, general=False), {}
    with Registry(bench.work / "shared-experts") as registry:
        register_shared(registry, bench)
        for label, recipe in (("", DUME), (ADDED_UP, WEIGHT_ONE)):
            for name, values in SWEEPS.items():
                sweep = {name: values}
                rows = registry.evaluate([], tests, bench.settings, experts=list(NEAR), recipe=recipe, sweep=sweep)
                curves[name + label] = {str(value): row.average for value, row in zip(values, rows, strict=True)}
    return {"curves": curves}


PARTS = {"sweeps": sweeps}


def figure(found: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return an SVG of all curves that were measured, or None."""
    import vl_convert

    panels = list(_panels(found))
    if not panels:
        return None
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "columns": 3,
        "concat": panels,
        "config": {"view": {"stroke": None}, "axis": {"grid": False}, "font": "sans-serif"},
    }
    text: str = vl_convert.vegalite_to_svg(json.dumps(specification))
    return text


def _panels(found: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for name, curve in found.get("sweeps", {}).get("curves", {}).items():
        yield _panel(TITLES[name], "score", curve)
    for name, curve in found.get("statistics-curves", {}).get("curves", {}).items():
        yield _panel(f"DUME: {name}", "score", curve, "point" if name == TEXT else "line")
    for part, begins, title in (
        ("soups", "soup", "Soup: domains of a step, support"),
        ("soups", "documents", "Soup: documents counted"),
        ("opt-out", "active", "FlexOlmo: active experts"),
    ):
        rows = {name: row for name, row in found.get(part, {}).get("rows", {}).items() if name.startswith(begins)}
        if rows:
            yield _panel(title, "perplexity", {name.split()[-1]: mean(row) for name, row in rows.items()})


def _panel(title: str, label: str, curve: Mapping[str, float], mark: str = "line") -> dict[str, Any]:
    return {
        "title": {"text": title, "fontSize": 11},
        "width": 180,
        "height": 120,
        "data": {"values": [{"x": at, "y": value} for at, value in curve.items()]},
        "mark": {"type": mark, "color": "#4477aa"} | ({"point": True} if mark == "line" else {"filled": True}),
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "sort": list(curve), "title": None, "axis": {"labelAngle": 0}},
            "y": {"field": "y", "type": "quantitative", "scale": {"zero": False}, "title": label},
        },
    }
