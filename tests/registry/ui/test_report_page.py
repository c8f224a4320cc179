"""Proves: a report among the local pages has their head, leads back to its composition, and keeps the chosen theme."""

from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from tests.pages import Page, Pages, served
from tests.registry.ui.browsing import LIGHT, enter, tab
from tests.registry.ui.examples import composed, shown

pytest.importorskip("vl_convert")


@pytest.mark.check
def test_a_report_is_sandboxed_and_leads_back_in_the_chosen_theme(filled: Registry) -> None:
    digest = composed(filled, "/else/<b>moe", "math", "code")
    cookies = ("", "a=b; reg-theme=dark", "reg-theme=<script>alert(1)</script>")
    path = f"/compositions/{digest}/report"
    with served(filled, ("reg", "--home", "here")) as pages:
        bar, policy = pages.read().links, pages.ask(path).headers["content-security-policy"]
        plain, dark, other = (pages.ask(path, headers={"Cookie": cookie}).text for cookie in cookies)
        assert pages.ask(f"/compositions/{digest[:9]}/report").headers["location"] == path
        assert pages.ask("/compositions/abcdef/report").status == 404
    assert "script-src 'sha256-" in policy
    assert "script-src 'unsafe" not in policy
    assert "sandbox allow-scripts" in policy
    assert digest[:16] in plain
    assert '<html lang="en" data-theme="dark">' in dark
    assert dark.replace(' data-theme="dark"', "", 1) == plain == other
    links = Page(plain).links
    assert f"/compositions/{digest}" in links
    assert {"/", "/compositions", "/compose", "/log"} <= set(links) & set(bar)
    assert "data-theme-switch hidden" not in plain  # a sandboxed page cannot keep a choice
    assert plain.count(' aria-current="page"') == 1
    assert '<a href="/compositions" aria-current="page">' in plain
    assert "reg --home here evaluate DIR --data code=FILE --data math=FILE --baselines --oracle" in plain


@pytest.mark.check
def test_a_report_links_to_what_a_browser_may_start(filled: Registry, writable: Pages, tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    digest = composed(filled, tmp_path / "moe", "math", "code")
    gone = composed(filled, tmp_path / "gone", "math", "law")
    form = f"/compositions/{digest}#evaluate"
    own = shown(writable, "compositions", digest, "report")
    assert {"/jobs", form} <= set(own.links)
    assert "Evaluate it here , or run:" in own.text
    assert {"/jobs", form}.isdisjoint(writable.read("compositions", digest, "report").links)
    assert f"/compositions/{gone}#evaluate" not in shown(writable, "compositions", gone, "report").links
    away = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    followed = writable.ask("/jobs", headers=away)  # no request of a sandboxed page carries the cookie
    assert (followed.status, "set-cookie" in followed.headers) == (200, False)
    assert 'http-equiv="refresh" content="0; url=/jobs"' in followed.text
    assert "form_token" not in followed.text
    with served(filled) as pages:
        assert pages.ask("/jobs", headers=away).status == 404


@pytest.mark.check
def test_the_theme_and_the_ways_on_work_in_the_sandbox(browser: Any, writable: Pages, digest: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    report = f"{writable.address}/compositions/{digest}/report"
    with tab(browser, **LIGHT) as (page, _):
        enter(page, writable)
        light = page.evaluate(ground)
        page.click("[data-theme-switch]")
        dark = page.evaluate(ground)
        assert dark != light
        page.goto(report)
        assert page.evaluate("origin") == "null"
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.click(".eyebrow a")
        page.wait_for_url(f"{writable.address}/compositions/{digest}")
        page.wait_for_selector("[data-theme-switch]")
        assert page.evaluate(ground) == dark  # it stays
        page.goto(report)
        page.click("nav a[href='/jobs']")
        page.wait_for_selector("text=No job was started yet")
        page.goto(report)
        page.click("nav a[href='/compose']")
        page.check("input[value='code@1']")
        page.wait_for_selector("#start button")  # it may start work
