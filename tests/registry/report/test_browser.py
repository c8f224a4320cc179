"""Proves: in a real browser a report draws every chart, asks the network for nothing, and lets no name become code."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.report import ReportData, page
from tests.registry.report.test_report import hostile
from tests.registry.ui.browsing import tab

DRAWN = (
    "[...document.querySelectorAll('[data-chart]')]"
    ".every((place) => place.closest('details:not([open])') || place.querySelector('svg'))"
)


@contextmanager
def opened(browser: Any, text: str, place: Path, **options: Any) -> Iterator[Any]:
    """Open a page until its charts are drawn; at its end nothing went wrong or was asked for."""
    (file := place / "report.html").write_text(text, encoding="utf-8")
    with tab(browser, **options) as (window, said):

        def dismiss(dialog: Any) -> None:
            said.append(dialog.message)
            dialog.dismiss()

        window.on("dialog", dismiss)
        window.on("request", lambda request: said.extend([request.url] if not request.url.startswith("file:") else []))
        window.goto(file.as_uri())
        wait_for_charts(window)
        yield window


def wait_for_charts(window: Any) -> None:
    for _ in range(12_000):  # a page that evaluates no text cannot be waited for by one
        if window.evaluate(DRAWN):
            return
        window.wait_for_timeout(50)
    raise AssertionError("a chart was not drawn")


@pytest.mark.check
def test_every_chart_is_drawn_in_light_and_dark(browser: Any, predicted: ReportData, tmp_path: Path) -> None:
    with opened(browser, page(predicted), tmp_path, color_scheme="light") as window:
        ground = "getComputedStyle(document.body).backgroundColor"
        cell = "getComputedStyle(document.querySelector('[data-chart=load] .mark-rect path')).fill"
        light = window.evaluate(ground), window.evaluate(cell)
        window.click("[data-theme-switch]")
        dark = window.evaluate(ground), window.evaluate(cell)
        assert light[0] != dark[0]
        assert light[1] != dark[1]
        assert window.get_attribute("[data-theme-switch]", "aria-pressed") == "true"
        window.emulate_media(color_scheme="dark")
        window.reload()
        wait_for_charts(window)
        assert (window.evaluate(ground), window.evaluate(cell)) == dark
        window.hover("[data-chart=load] .mark-rect path")
        window.wait_for_selector("#vg-tooltip-element.visible")
        assert "mean over layers" in window.inner_text("#vg-tooltip-element")
        charts = window.evaluate(
            "[...document.querySelectorAll('.chart text')].map((one) => one.textContent).join('|')"
        )
        assert re.search("[0-9]\u00a0%", charts)  # as sentences have it
        assert not re.search("[0-9]%", charts)
        window.set_viewport_size({"width": 360, "height": 800})
        window.reload()
        wait_for_charts(window)
        assert window.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.check
def test_hostile_names_run_nothing(browser: Any, predicted: ReportData, tmp_path: Path) -> None:
    with opened(browser, page(hostile(predicted)), tmp_path) as window:
        window.hover("[data-chart=scores] .layer_5_marks path")
        window.wait_for_selector("#vg-tooltip-element.visible")
        assert "onerror=alert" in window.inner_text("#vg-tooltip-element")
        assert window.evaluate("document.images.length") == 0


@pytest.mark.parametrize("depth", [14, 50, 128])
def test_numbers_of_layers_do_not_touch_at_any_depth(
    browser: Any, predicted: ReportData, tmp_path: Path, depth: int
) -> None:
    """Every number up to 14 layers, and every fifth beyond; also on a phone, where some are left out."""
    assert predicted.routing is not None
    shares = {
        domain: {expert: tuple(own[0] for _ in range(depth)) for expert, own in experts.items()}
        for domain, experts in predicted.routing.shares.items()
    }
    deep = replace(predicted, routing=replace(predicted.routing, layers=tuple(range(depth)), shares=shares))
    with opened(browser, page(deep), tmp_path) as window:
        for width in (1280, 360):
            window.set_viewport_size({"width": width, "height": 800})
            window.reload()
            wait_for_charts(window)
            boxes = window.evaluate(
                "[...document.querySelectorAll('[data-chart=routing-0] .role-axis-label text')]"
                ".filter((one) => /^[0-9]+$/.test(one.textContent) && getComputedStyle(one).opacity != '0')"
                ".map((one) => [one.textContent, one.getBoundingClientRect()])"
                ".map(([number, box]) => [Number(number), box.left, box.right])"
            )
            assert all(before[2] < after[1] for before, after in itertools.pairwise(boxes)), (width, boxes)
            expected = [layer for layer in range(depth) if depth == 14 or layer % 5 == 0]
            assert [box[0] for box in boxes] == expected or width == 360
