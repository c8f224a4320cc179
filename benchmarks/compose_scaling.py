"""Compose time by bytes, by number of experts and by width, with the limit: `cp -r` and `sync` of what is written.

Small random experts, so that all of it takes minutes. `figure` draws what was measured, which `make bench` keeps.
"""

import re
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path

from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.compose_copy import copy
from benchmarks.random_experts import fill
from registry import Recipe, Registry

ROUNDS = 1
TRUNKS = ("mean", "regmean")


@dataclass(frozen=True)
class Point:
    """What is composed: so many experts of a width and a depth."""

    experts: int = 4
    hidden: int = 1024
    layers: int = 4

    @property
    def shape(self) -> dict[str, int]:
        """Keys of a Llama's config.json."""
        return {
            "vocab_size": 8_000,
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64,
            "num_key_value_heads": self.hidden // 256,
            "head_dim": 64,
        }


SERIES = {
    "bytes": tuple(Point(layers=layers) for layers in (2, 4, 8, 16)),
    "experts": tuple(Point(experts=experts) for experts in (2, 4, 8)),
    "width": tuple(Point(hidden=hidden) for hidden in (512, 1024, 2048)),
}
"""What grows → the points."""

_NOTE = re.compile(r"([\d,]+) experts, H = ([\d,]+), ([\d.]+) GB")


def measure(scratch: Path) -> list[Comparison]:
    """Return a comparison for each point and trunk; a point of two series is measured once for each."""
    found = []
    for series, points in SERIES.items():
        for point in points:
            home, names = fill(scratch / f"{point.experts}-{point.hidden}-{point.layers}", point.experts, **point.shape)
            with Registry(home) as registry:
                found += [compared(registry, names, series, point, trunk, scratch) for trunk in TRUNKS]
    return found


def compared(registry: Registry, names: list[str], series: str, point: Point, trunk: str, scratch: Path) -> Comparison:
    """Return the comparison of one composition with copying what it wrote."""
    out, whole, to = scratch / "moe", scratch / "whole", scratch / "copy"
    recipe = Recipe(trunk=trunk, router="ridge")
    registry.compose(names, whole, recipe)  # it warms up too
    nbytes = sum(path.stat().st_size for path in whole.iterdir())
    try:
        both = alternate(
            f"compose against `cp -r` and `sync`, by {series}, trunk {trunk}",
            partial(registry.compose, names, out, recipe),
            partial(copy, whole, to),
            ROUNDS,
            warm_up=0,
            setup=Setup(before_ours=partial(shutil.rmtree, out, True), before_other=partial(shutil.rmtree, to, True)),
            note=f"{point.experts} experts, H = {point.hidden:,}, {nbytes / 1e9:.2f} GB",
        )
        return replace(both, ours_peak=None, other_peak=None)  # this process registered the experts too
    finally:
        for folder in (out, whole, to):
            shutil.rmtree(folder, True)


WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 200, 52, 40, 62
"""Of a panel, and what is left free beside and above it, in pixels."""

COLOURS = {"trunk mean": "#2a78c8", "trunk regmean": "#c8632a", "cp -r and sync": "#888888"}
TITLES = {"bytes": "gigabytes written", "experts": "experts", "width": "hidden size H"}


def figure(comparisons: Sequence[Comparison]) -> str:
    """Return an SVG of three panels: seconds by bytes, experts and width, with the copy as the limit."""
    panels = []
    for number, series in enumerate(SERIES):
        rows = [row for row in comparisons if f", by {series}, " in row.claim and row.ours]
        lines: dict[str, list[tuple[float, float]]] = {name: [] for name in COLOURS}
        for row in rows:
            at = _place(row, series)
            lines["trunk " + row.claim.rpartition(" ")[2]].append((at, statistics.median(row.ours)))
            if row.claim.endswith(" mean"):
                lines["cp -r and sync"].append((at, statistics.median(row.other)))
        panels.append(_panel(LEFT + number * (WIDTH + GAP), TITLES[series], lines))
    full = LEFT + 3 * WIDTH + 2 * GAP + 16
    legend = "".join(
        f'<line x1="{LEFT + 130 * n}" y1="16" x2="{LEFT + 130 * n + 22}" y2="16" stroke="{colour}" stroke-width="2"'
        f'{_dash(name)}/><text x="{LEFT + 130 * n + 28}" y="20">{escape(name)}</text>'
        for n, (name, colour) in enumerate(COLOURS.items())
    )
    style = "text { font: 12px system-ui, sans-serif; fill: #777 } .axis { stroke: #999; fill: none }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full} {TOP + HEIGHT + 48}" role="img" '
        f'aria-label="Compose time by bytes, experts and width">\n<style>{style}</style>\n{legend}\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _place(row: Comparison, series: str) -> float:
    found = _NOTE.fullmatch(row.note)
    if found is None:
        raise ValueError(f"{row.note!r} does not describe a point")
    experts, hidden, gigabytes = (float(text.replace(",", "")) for text in found.groups())
    return {"bytes": gigabytes, "experts": experts, "width": hidden}[series]


def _panel(left: int, title: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    points = [point for line in lines.values() for point in line]
    most_x, most_y = (max((point[axis] for point in points), default=1.0) * 1.05 for axis in (0, 1))

    def at(x: float, y: float) -> str:
        return f"{left + WIDTH * x / most_x:.1f},{TOP + HEIGHT * (1 - y / most_y):.1f}"

    bottom = TOP + HEIGHT
    parts = [f'<path class="axis" d="M{left},{TOP}V{bottom}H{left + WIDTH}"/>']
    for x in sorted({point[0] for point in points}):
        across = at(x, 0).partition(",")[0]
        parts.append(f'<text x="{across}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    for step in range(1, 5):
        y = most_y * step / 4
        height = TOP + HEIGHT * (1 - step / 4)
        parts.append(f'<text x="{left - 6}" y="{height + 4:.1f}" text-anchor="end">{y:.2g} s</text>')
    parts.append(f'<text x="{left + WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">{escape(title)}</text>')
    for name, line in lines.items():
        path = " ".join(at(x, y) for x, y in sorted(line))
        colour = COLOURS[name]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{_dash(name)}/>')
        for x, y in line:
            across, down = at(x, y).split(",")
            parts.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"/>')
    return f"<g>{''.join(parts)}</g>"


def _dash(name: str) -> str:
    return ' stroke-dasharray="5 4"' if name.startswith("cp") else ""


if __name__ == "__main__":
    run(measure)
