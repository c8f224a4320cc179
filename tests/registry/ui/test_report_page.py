"""Proves: a report among the local pages has their head, leads back to its composition, and keeps the chosen theme."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import composed

pytest.importorskip("vl_convert")


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled, ("reg", "--home", "here")) as found:
        yield found


@pytest.mark.check
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
    assert 'id="theme"' not in plain  # a sandboxed page cannot keep a choice
    assert "/jobs" not in links
    assert plain.count(' aria-current="page"') == 1
    assert '<a href="/compositions" aria-current="page">' in plain
    assert "reg --home here evaluate DIR --data code=FILE --data math=FILE --baselines --oracle" in plain


@pytest.mark.check
def test_a_report_links_to_the_jobs_of_a_browser_that_may_start_them(filled: Registry, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    path = f"/compositions/{digest}/report"
    away = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    with served(filled, may_write=True) as pages:
        assert "/jobs" in Page(pages.ask(path, headers=pages.cookie).text).links
        assert "/jobs" not in Page(pages.ask(path).text).links
        for where in ("/jobs", "/compose?e=math&e=code"):  # no request of a sandboxed page carries the cookie
            followed, target = pages.ask(where, headers=away), where.replace("&", "&amp;")
            assert followed.status == 200
            assert f'http-equiv="refresh" content="0; url={target}"' in followed.text
            assert "form_token" not in followed.text
            assert "set-cookie" not in followed.headers
        assert "No job was started yet" in pages.ask("/jobs", headers=pages.cookie).text
        assert pages.ask("/jobs").status == 403
    with served(filled) as pages:
        assert pages.ask("/jobs", headers=away).status == 404


def test_a_report_without_scores_leads_to_the_form_that_evaluates(filled: Registry, tmp_path: Path) -> None:
    digest = filled.compose(["math", "code"], tmp_path / "moe").digest
    gone = composed(filled, tmp_path / "gone", "math", "law")
    form = f"/compositions/{digest}#evaluate"
    with served(filled, may_write=True) as pages:
        found = Page(pages.ask(f"/compositions/{digest}/report", headers=pages.cookie).text)
        assert form in found.links
        assert "Evaluate it here , or run:" in found.text
        assert form not in Page(pages.ask(f"/compositions/{digest}/report").text).links
        other = pages.ask(f"/compositions/{gone}/report", headers=pages.cookie).text
    assert "#evaluate" not in other  # no folder of it is there


@pytest.mark.check
def test_the_theme_and_the_way_back_work_in_the_sandbox(
    browser: Any, filled: Registry, pages: Pages, tmp_path: Path
) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    with browser.new_context(color_scheme="light") as context:
        tab = context.new_page()
        tab.set_default_timeout(120_000)
        tab.goto(f"{pages.address}/log")
        tab.click("[data-theme-switch]")
        tab.goto(f"{pages.address}/compositions/{digest}/report")
        assert tab.evaluate("origin") == "null"
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
        tab.click(".eyebrow a")
        tab.wait_for_url(f"{pages.address}/compositions/{digest}")
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_jobs_and_a_composer_that_may_start_them_are_reached_from_the_sandbox(
    browser: Any, filled: Registry, tmp_path: Path
) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    with served(filled, may_write=True) as pages, browser.new_context() as context:
        assert pages.access is not None
        tab = context.new_page()
        tab.set_default_timeout(120_000)
        tab.goto(f"{pages.address}/?token={pages.access.token}")
        tab.wait_for_url(f"{pages.address}/")
        tab.goto(f"{pages.address}/compositions/{digest}/report")
        tab.click("nav a[href='/jobs']")
        tab.wait_for_selector("text=No job was started yet")
        tab.goto(f"{pages.address}/compositions/{digest}/report")
        tab.click("nav a[href='/compose']")
        tab.check("input[value='code@1']")
        tab.wait_for_selector("#start button")  # it may start work
