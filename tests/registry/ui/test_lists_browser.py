"""Proves, in Chromium: compositions are found, compared and evaluated by keys alone; the list of jobs follows itself.

Skipped where there is no Chromium, as `test_browser.py`, which says how accessibility is checked.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from registry import Recipe, Registry
from tests.pages import Pages, served
from tests.registry.ui.test_browser import LIGHT, PHONE, tab
from tests.registry.ui.test_composer_browser import FOLLOWED, enter, faults
from tests.registry.ui.test_every_kind import evaluated, recorded

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab


@pytest.fixture
def pages(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """Two compositions with scores, one with a folder; the command of a job goes on until `go` is there."""
    for name, recipe, average in (("moe", Recipe(), 80.0), ("dense", Recipe(to="dense", trunk="mean"), 90.0)):
        digest = recorded(filled, filled.plan(["code", "math"], recipe), str(tmp_path / name))
        scores = evaluated(name)
        scores["figures"] = scores["figures"] | {"average": average}
        filled.catalog.record_evaluation(digest, "1" * 64, scores)
    (tmp_path / "moe").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "math.txt").write_text("text")
    monkeypatch.chdir(tmp_path / "work")
    with served(filled, may_write=True, program=(sys.executable, "-c", FOLLOWED, str(tmp_path / "go"))) as found:
        yield found


def tab_to(page: "Tab", selector: str) -> None:
    """Press Tab until an element that matches has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


@pytest.mark.check
@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_compositions_are_found_and_compared_by_keyboard(
    browser: "Browser", pages: Pages, filled: Registry, script: bool
) -> None:
    digest = next(one.digest for one in filled.compositions() if one.folders[-1].endswith("moe"))
    scores = evaluated("moe")
    scores["figures"] = scores["figures"] | {"score": {"code": 97.0, "math": 80.0}}
    filled.catalog.record_evaluation(digest, "1" * 64, scores)  # on code it is better than the newer one
    with tab(browser, **LIGHT, java_script_enabled=script) as (_, page, said):
        page.set_default_timeout(10_000)
        page.goto(f"{pages.address}/compositions")
        assert page.locator(".composition h2").all_inner_texts() == ["dense", "moe"]
        tab_to(page, "input[name=q]")
        page.keyboard.type("code@1")
        tab_to(page, "select[name=domain]")
        page.keyboard.type("code")
        tab_to(page, "select[name=sort]")
        page.keyboard.type("best")
        tab_to(page, ".filters button")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="All compositions").wait_for()  # which only a narrowed list has
        assert page.locator(".composition h2").all_inner_texts() == ["moe", "dense"]
        tab_to(page, ".composition input")
        page.keyboard.press("Space")
        tab_to(page, ".composition input")
        page.keyboard.press("Space")
        tab_to(page, ".compare button")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="2 compositions side by side").wait_for()
        page.go_back()
        page.reload()
        tab_to(page, ".composition h2 a")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="moe", exact=True).wait_for()
        assert said == []


@pytest.mark.check
@pytest.mark.parametrize("options", [LIGHT, PHONE], ids=["light", "phone"])
def test_an_evaluation_is_started_by_keyboard_and_the_list_follows_it(
    browser: "Browser", pages: Pages, filled: Registry, tmp_path: Path, options: dict[str, Any]
) -> None:
    digest = next(one.digest for one in filled.compositions() if one.folders[-1].endswith("moe"))
    with tab(browser, **options) as (_, page, said):
        enter(page, pages)
        page.goto(f"{pages.address}/compositions/{digest}")
        page.locator("summary", has_text="Score it on text").focus()
        for is_open in (False, True):  # it is open, as few tokens were scored
            page.keyboard.press("Enter")
            page.wait_for_function(f"document.activeElement.parentElement.open === {str(is_open).lower()}")
        page.get_by_label("math", exact=True).focus()
        page.keyboard.type("math.txt")
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/*")
        title = "Evaluate moe on math (96 windows a domain, with baselines, with perfect routing)"
        assert page.locator("h1").inner_text() == title
        assert "--data math=math.txt" in page.locator(".job > .command code").inner_text()
        page.goto(f"{pages.address}/jobs")
        page.get_by_text("1 job going on").wait_for()
        page.locator(".joblist a").focus()
        (tmp_path / "go").touch()
        page.get_by_text("Nothing is going on").wait_for()  # without being loaded again
        assert page.locator("[data-job-status]").inner_text() == "0 jobs going on."
        assert page.evaluate("document.activeElement.textContent") == title  # it keeps its focus
        assert page.locator("[data-follow]").count() == 0
        assert faults(page) == []
        assert said == []
