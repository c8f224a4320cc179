"""Proves: in a real browser a report draws every chart, asks the network for nothing, and lets no name become code."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.report import ReportData, page
from tests.registry.report.test_report import hostile

DRAWN = (
    "[...document.querySelectorAll('[data-chart]')]"
    ".every((place) => place.closest('details:not([open])') || place.querySelector('svg'))"
)


def opened(browser: Any, text: str, place: Path, **media: str) -> tuple[Any, list[str]]:
    """Return a page with its charts drawn, and what went wrong or was asked for."""
    file = place / "report.html"
    file.write_text(text, encoding="utf-8")
    tab, said = browser.new_page(), list[str]()
    tab.set_default_timeout(600_000)
    tab.emulate_media(**media)

    def dismiss(dialog: Any) -> None:
        said.append(dialog.message)
        dialog.dismiss()

    def note(request: Any) -> None:
        if not request.url.startswith("file:"):
            said.append(request.url)

    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", dismiss)
    tab.on("request", note)
    tab.goto(file.as_uri())
    wait_for_charts(tab)
    return tab, said


def wait_for_charts(tab: Any) -> None:
    for _ in range(12_000):  # a page that evaluates no text cannot be waited for by one
        if tab.evaluate(DRAWN):
            return
        tab.wait_for_timeout(50)
    raise AssertionError("a chart was not drawn")


@pytest.mark.check
def test_every_chart_is_drawn_in_light_and_dark(browser: Any, predicted: ReportData, tmp_path: Path) -> None:
    tab, said = opened(browser, page(predicted), tmp_path, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    cell = "getComputedStyle(document.querySelector('[data-chart=load] .mark-rect path')).fill"
    light = tab.evaluate(ground), tab.evaluate(cell)
    tab.click("#theme")
    dark = tab.evaluate(ground), tab.evaluate(cell)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert tab.get_attribute("#theme", "aria-pressed") == "true"
    tab.emulate_media(color_scheme="dark")
    tab.reload()
    wait_for_charts(tab)
    assert (tab.evaluate(ground), tab.evaluate(cell)) == dark
    tab.hover("[data-chart=load] .mark-rect path")
    tab.wait_for_selector("#vg-tooltip-element.visible")
    assert "mean over layers" in tab.inner_text("#vg-tooltip-element")
    charts = tab.evaluate("[...document.querySelectorAll('.chart text')].map((one) => one.textContent).join('|')")
    assert re.search("[0-9]\u00a0%", charts)  # as sentences have it
    assert not re.search("[0-9]%", charts)
    tab.set_viewport_size({"width": 360, "height": 800})
    tab.reload()
    wait_for_charts(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert said == []
    tab.close()


@pytest.mark.check
def test_hostile_names_run_nothing(browser: Any, predicted: ReportData, tmp_path: Path) -> None:
    tab, said = opened(browser, page(hostile(predicted)), tmp_path)
    tab.hover("[data-chart=scores] .layer_5_marks path")
    tab.wait_for_selector("#vg-tooltip-element.visible")
    assert "onerror=alert" in tab.inner_text("#vg-tooltip-element")
    assert tab.evaluate("document.images.length") == 0
    assert said == []
    tab.close()


@pytest.mark.parametrize("depth", [14, 30, 50, 128])
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
    tab, said = opened(browser, page(deep), tmp_path)
    for width in (1280, 360):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.reload()
        wait_for_charts(tab)
        boxes = tab.evaluate(
            "[...document.querySelectorAll('[data-chart=routing-0] .role-axis-label text')]"
            ".filter((one) => /^[0-9]+$/.test(one.textContent) && getComputedStyle(one).opacity != '0')"
            ".map((one) => [one.textContent, one.getBoundingClientRect()])"
            ".map(([number, box]) => [Number(number), box.left, box.right])"
        )
        assert all(before[2] < after[1] for before, after in itertools.pairwise(boxes)), (width, boxes)
        expected = [layer for layer in range(depth) if depth == 14 or layer % 5 == 0]
        assert [box[0] for box in boxes] == expected or width == 360
    assert said == []
    tab.close()
