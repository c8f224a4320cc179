"""Proves, in Chromium: the Compose page mends and starts what is ticked, and a job is followed to its end.

Skipped where there is no Chromium, as `test_browser.py`, which says how accessibility is checked.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from registry import Registry
from tests.conftest import Zoo
from tests.pages import Pages, served
from tests.registry.ui.test_browser import AXE, DARK, LIGHT, PHONE, loaded, tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

FOLLOWED = """
import json, os, sys, time
def tell(text): print(text, file=sys.stderr, flush=True)
tell("progress: solving 2/2 layer")
tell("a remark <b>")
while not os.path.exists(sys.argv[1]):
    tell("progress: writing 500/2000 B")
    time.sleep(0.1)
if "law@1" in " ".join(sys.argv):
    tell(json.dumps({"error": {"message": "the <b>disk</b> is full", "next": "free some space"}}))
    sys.exit(1)
print(json.dumps({"digest": "0" * 64, "parameters": 1000, "bytes": 2000}))
"""
"""A command that goes on until the file of its first argument is there."""


@pytest.fixture
def pages(filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """A registry with two versions of math, where the command of a job goes on until `go(tmp_path)`."""
    filled.add_expert("math", zoo.experts["code"])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with served(filled, may_write=True, program=(sys.executable, "-c", FOLLOWED, str(tmp_path / "go"))) as found:
        yield found


def enter(page: "Tab", pages: Pages) -> None:
    """Open the address that `reg ui --write` prints."""
    assert pages.access is not None
    page.goto(f"{pages.address}/?token={pages.access.token}")
    page.wait_for_url(f"{pages.address}/")


def faults(page: "Tab") -> list[str]:
    """Return the faults of accessibility, where axe-core is there."""
    if not AXE.is_file():
        return []
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}" for one in found]


def narrow(page: "Tab") -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.check
def test_ticking_a_version_unticks_the_other(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        enter(page, pages)
        page.goto(f"{pages.address}/compose?e=code@1&e=math@1")
        page.check("input[value='math@2']")
        assert not page.is_checked("input[value='math@1']")
        page.locator("#result .command code", has_text="--experts code@1,math@2").wait_for()
        told = page.locator("[role=status][data-unticked]")
        assert told.inner_text() == "math@1 was unticked: one version of a name at a time."
        assert told.is_visible()
        page.uncheck("input[value='code@1']")
        assert told.inner_text() == ""
        page.check("input[value='code@1']")
        page.locator("#result .command code", has_text="--experts code@1,math@2").wait_for()
        assert page.locator("[data-count]").inner_text() == "2 ticked"
        assert said == []


@pytest.mark.check
def test_what_is_ticked_before_the_script_runs_is_planned(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        held: list[Any] = []
        page.route("**/composer.js", lambda route: held.append(route))
        page.goto(f"{pages.address}/compose", wait_until="commit")
        page.check("input[value='code@1']")
        page.check("input[value='law@1']")
        assert "Tick experts to see the plan." in page.inner_text("#result")
        held[0].continue_()
        page.wait_for_selector("#result >> text=A sparse mixture of 2 experts")
        assert page.inner_text("[data-count]") == "2 ticked"
        assert said == []


@pytest.mark.check
def test_the_result_is_shown_whole_and_stays_beside_the_form_where_it_fits(browser: "Browser", pages: Pages) -> None:
    top = "document.querySelector('.outcome').getBoundingClientRect().top"
    bottom = "document.querySelector('.outcome').getBoundingClientRect().bottom"
    with tab(browser, **LIGHT) as (_, page, said):
        page.goto(f"{pages.address}/compose?e=code@1&e=math@1")
        loaded(page)
        for fold in page.locator("details > summary").all():
            fold.click()
        assert page.evaluate("(box => box.scrollHeight - box.clientHeight)(document.querySelector('.outcome'))") == 0
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function(f"{bottom} <= innerHeight")
        page.goto(f"{pages.address}/compose")
        for fold in page.locator("details > summary").all():
            fold.click()
        page.set_viewport_size({"width": 1200, "height": 500})
        page.evaluate("scrollTo(0, 200)")
        page.wait_for_function(f"{top} > 0 && {bottom} <= innerHeight")
        assert said == []


@pytest.mark.check
@pytest.mark.parametrize("width", [1280, 1440])
def test_accuracy_by_tokens_read_fits_beside_the_form(browser: "Browser", pages: Pages, width: int) -> None:
    region = "document.querySelector('[aria-label=\"Accuracy by tokens read\"]')"
    with tab(browser, **{**LIGHT, "viewport": {"width": width, "height": 900}}) as (_, page, said):
        page.goto(f"{pages.address}/compose?e=code@1&e=german@1&e=math@1")
        loaded(page)
        page.locator("details > summary", has_text="Accuracy by tokens read").click()
        widest = ("1", "2", "4", "8", "16", "32", "64", "128", "256")  # as of a model that reads as many
        page.evaluate(
            f"""counts => {{
                for (const row of {region}.querySelectorAll("tr")) {{
                    const last = row.lastElementChild;
                    while (row.children.length <= counts.length) row.append(last.cloneNode());
                    const text = count => row.closest("thead") ? count : "100";
                    counts.forEach((count, at) => {{ row.children[at + 1].textContent = text(count); }});
                }}
            }}""",
            widest,
        )
        assert page.evaluate(f"{region}.scrollWidth <= {region}.clientWidth")
        page.evaluate(f"{region}.style.width = '12rem'")  # where it does not fit, a bar is drawn
        assert page.evaluate(f"getComputedStyle({region}, '::-webkit-scrollbar').height") == "10px"
        assert said == []


@pytest.mark.check
def test_what_is_being_computed_does_not_fade(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        page.goto(f"{pages.address}/compose")
        waiting = '<div id="busy" aria-busy="true"><p class="waiting">Computing …</p></div>'
        page.evaluate("text => document.querySelector('main').insertAdjacentHTML('beforeend', text)", waiting)
        page.wait_for_timeout(400)
        assert page.evaluate("getComputedStyle(document.getElementById('busy')).opacity") == "1"
        assert page.evaluate(
            "getComputedStyle(document.querySelector('#busy p')).color === getComputedStyle(document.body).color"
        )
        assert said == []


@pytest.mark.check
def test_a_change_that_mends_is_applied_by_its_button(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        page.goto(f"{pages.address}/compose?e=code@1&e=law@1&e=math@1&router=ridge")
        loaded(page)
        badge = page.locator("[data-warnings]")
        assert badge.text_content() == "1 warning"
        page.locator("[data-apply]", has_text="Use the context router").focus()
        page.keyboard.press("Enter")
        page.locator("#result .command code").filter(has_not_text="ridge").wait_for()
        loaded(page)
        assert page.locator("select[name=router]").input_value() == "context"
        assert page.evaluate("document.activeElement.id") == "outcome"
        assert badge.is_hidden()
        assert page.locator("[data-apply]").count() == 0
        page.goto(f"{pages.address}/compose?e=code@1&e=law@1&e=math@1&e=math@2")
        page.locator("[data-apply]", has_text="Keep math@2, drop math@1").click()
        page.locator("#result .command code", has_text="--experts code@1,law@1,math@2").wait_for()
        assert not page.is_checked("input[value='math@1']")
        assert page.locator("#start").count() == 0  # without the secret there is only the command
        assert said == []


@pytest.mark.check
@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_a_job_is_started_and_followed_to_its_end(
    browser: "Browser", pages: Pages, tmp_path: Path, options: dict[str, Any]
) -> None:
    with tab(browser, **options) as (_, page, said):
        enter(page, pages)
        page.goto(f"{pages.address}/compose?e=code@1")
        page.check("input[value='math@1']")
        start = page.locator(".essentials button" if options is PHONE else "#start button")
        page.locator("#result .command code", has_text="--out code-math/").wait_for()
        loaded(page)
        assert page.locator("#field-out").get_attribute("placeholder") == "code-math/"
        assert page.locator(".essentials").is_visible() == (options is PHONE)
        assert faults(page) == []
        assert narrow(page)
        start.click()
        page.locator(".progress", has_text="writing").wait_for()
        assert "500 B of 2.0 kB" in page.locator(".progress").inner_text()
        assert page.locator(".lines").inner_text().strip() == "a remark <b>"
        assert faults(page) == []
        assert narrow(page)
        page.get_by_role("button", name="Cancel").focus()
        page.wait_for_timeout(1500)  # the page was brought up to date, and the focus stays
        assert page.evaluate("document.activeElement.textContent") == "Cancel"
        (tmp_path / "go").touch()
        page.get_by_role("link", name="Open the composition").wait_for()
        assert page.locator("[data-job-status]").inner_text() == "The job is done."
        assert page.title() == "Compose code@1, math@1 (default recipe): done · reg"
        assert page.get_by_role("link", name="Open the composition, and evaluate it").is_visible()
        assert faults(page) == []
        page.goto(f"{pages.address}/jobs")
        assert "done" in page.locator("main").inner_text()
        assert faults(page) == []
        assert narrow(page)
        assert said == []


@pytest.mark.check
def test_a_job_fails_and_another_is_cancelled(browser: "Browser", pages: Pages, tmp_path: Path) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        enter(page, pages)
        page.goto(f"{pages.address}/compose?e=code@1&e=math@1")
        page.locator("#start button").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_text("Nothing was written.").wait_for()
        (tmp_path / "go").touch()
        page.goto(f"{pages.address}/compose?e=code@1&e=law@1")
        page.locator("#start button").click()
        page.get_by_text("the <b>disk</b> is full").wait_for()
        assert faults(page) == []
        page.get_by_role("link", name="Change the choices").click()
        assert page.is_checked("input[value='law@1']")
        assert said == []


@pytest.mark.check
def test_it_works_without_the_script(browser: "Browser", pages: Pages, tmp_path: Path) -> None:
    with tab(browser, **LIGHT, java_script_enabled=False) as (_, page, _said):
        enter(page, pages)
        page.goto(f"{pages.address}/compose?e=code@1&e=math@1&e=math@2")
        page.get_by_role("link", name="Keep math@1, drop math@2").click()
        page.fill("#field-out", "mine")
        page.get_by_role("button", name="Show the plan").click()
        page.get_by_role("button", name="Compose into mine").click()
        page.locator(".progress", has_text="writing").wait_for()
        (tmp_path / "go").touch()
        page.get_by_role("link", name="Open the composition").wait_for()  # the page loads again by itself


@pytest.mark.check
def test_a_browser_without_the_secret_only_reads(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        page.goto(f"{pages.address}/compose?e=code@1&e=math@1")
        loaded(page)
        assert page.locator("#start").count() == 0
        assert page.get_by_role("link", name="Jobs").count() == 0
        assert said == []
