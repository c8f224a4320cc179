"""Proves: a report among the local pages has their head, leads back to its composition, and keeps the chosen theme."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from tests.pages import Page, Pages, served
from tests.registry.ui.test_pages import composed

pytest.importorskip("vl_convert")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled, ("reg", "--home", "here")) as found:
        yield found


def test_a_report_leads_back_in_the_chosen_theme(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    path = f"/compositions/{digest}/report"
    plain, dark, other = (
        pages.ask(path, headers={"Cookie": cookie}).text
        for cookie in ("", "a=b; reg-theme=dark", "reg-theme=<script>alert(1)</script>")
    )
    assert '<html lang="en" data-theme="dark">' in dark
    assert dark.replace(' data-theme="dark"', "", 1) == plain == other
    links = Page(plain).links
    assert f"/compositions/{digest}" in links
    bar = pages.read().links
    assert {"/", "/compositions", "/compose", "/log"} <= set(links) & set(bar)
    assert "reg --home here evaluate DIR --data code=FILE --data math=FILE --baselines --oracle" in plain


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_theme_and_the_way_back_work_in_the_sandbox(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    started: Any = pytest.importorskip("playwright.sync_api").sync_playwright()
    digest = composed(filled, tmp_path / "moe", "math", "code")
    with started as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(color_scheme="light").new_page()
        tab.set_default_timeout(120_000)
        tab.goto(f"{pages.address}/log")
        tab.click("[data-theme-switch]")
        tab.goto(f"{pages.address}/compositions/{digest}/report")
        assert tab.evaluate("origin") == "null"
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
        tab.click(".eyebrow a")
        tab.wait_for_url(f"{pages.address}/compositions/{digest}")
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
        browser.close()
