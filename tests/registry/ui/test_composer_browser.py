"""Proves, in Chromium: the Compose page mends and starts what is ticked, and a job is followed to its end."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from registry import Registry
from tests.conftest import Zoo
from tests.pages import Pages
from tests.registry.ui.browsing import DARK, LIGHT, PHONE, enter, faults, loaded, tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def pages(filled: Registry, followed: Pages, zoo: Zoo) -> Pages:
    """A registry with two versions of math."""
    filled.add_expert("math", zoo.experts["code"])
    return followed


@pytest.mark.check
def test_ticking_a_version_unticks_the_other(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (page, _):
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
        held: list[Any] = []  # what is ticked before the script runs is planned
        page.route("**/composer.js", lambda route: held.append(route))
        page.goto(f"{pages.address}/compose", wait_until="commit")
        page.check("input[value='code@1']")
        page.check("input[value='law@1']")
        assert "Tick experts to see the plan." in page.inner_text("#result")
        held[0].continue_()
        page.wait_for_selector("#result >> text=A sparse mixture of 2 experts")
        assert page.inner_text("[data-count]") == "2 ticked"


@pytest.mark.check
def test_the_result_is_shown_whole_and_stays_beside_the_form_where_it_fits(browser: "Browser", pages: Pages) -> None:
    top = "document.querySelector('.outcome').getBoundingClientRect().top"
    bottom = "document.querySelector('.outcome').getBoundingClientRect().bottom"
    with tab(browser, **LIGHT) as (page, _):
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
        waiting = '<div id="busy" aria-busy="true"><p class="waiting">Computing …</p></div>'
        page.evaluate("text => document.querySelector('main').insertAdjacentHTML('beforeend', text)", waiting)
        page.wait_for_timeout(400)  # what is being computed does not fade
        assert page.evaluate("getComputedStyle(document.getElementById('busy')).opacity") == "1"
        text_colour = "getComputedStyle(document.querySelector('#busy p')).color"
        assert page.evaluate(f"{text_colour} === getComputedStyle(document.body).color")


@pytest.mark.check
def test_accuracy_by_tokens_read_fits_beside_the_form(browser: "Browser", pages: Pages) -> None:
    region = "document.querySelector('[aria-label=\"Accuracy by tokens read\"]')"
    widest = ("1", "2", "4", "8", "16", "32", "64", "128", "256")  # as of a model that reads as many
    with tab(browser, **LIGHT) as (page, _):
        for width in (1280, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{pages.address}/compose?e=code@1&e=german@1&e=math@1")
            loaded(page)
            page.locator("details > summary", has_text="Accuracy by tokens read").click()
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


@pytest.mark.check
def test_a_change_that_mends_is_applied_by_its_button(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (page, _):
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
        assert page.get_by_role("link", name="Jobs").count() == 0


@pytest.mark.check
@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_a_job_is_started_and_followed_to_its_end(
    browser: "Browser", pages: Pages, tmp_path: Path, options: dict[str, Any]
) -> None:
    with tab(browser, **options) as (page, _):
        enter(page, pages)
        page.goto(f"{pages.address}/compose?e=code@1")
        page.check("input[value='math@1']")
        start = page.locator(".essentials button" if options is PHONE else "#start button")
        page.locator("#result .command code", has_text="--out code-math/").wait_for()
        loaded(page)
        assert page.locator("#field-out").get_attribute("placeholder") == "code-math/"
        assert page.locator(".essentials").is_visible() == (options is PHONE)
        assert faults(page) == []
        start.click()
        page.locator(".progress", has_text="writing").wait_for()
        assert "500 B of 2.0 kB" in page.locator(".progress").inner_text()
        assert page.locator(".lines").inner_text().strip() == "a remark <b>"
        assert faults(page) == []
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


@pytest.mark.check
def test_it_works_without_the_script(browser: "Browser", pages: Pages, tmp_path: Path) -> None:
    with tab(browser, **LIGHT, java_script_enabled=False) as (page, _):
        enter(page, pages)
        page.fill("input[name=q]", "law")
        page.get_by_role("button", name="Search").click()
        assert page.locator(".expert h3 a").all_inner_texts() == ["law@1"]
        page.locator(".expert h3 a").click()
        page.get_by_role("link", name="Compare with the others").click()
        page.locator("summary", has_text="Distances").click()
        assert "same base" in page.locator("main").inner_text()
        page.goto(f"{pages.address}/compose?e=math@2")
        page.check("input[value='code@1']")
        page.check("input[value='math@1']")
        page.get_by_role("button", name="Show the plan").click()
        page.get_by_role("link", name="Keep math@1, drop math@2").click()
        page.fill("#field-out", "mine")
        page.get_by_role("button", name="Show the plan").click()
        assert "--experts code@1,math@1" in page.locator("#result").inner_text()
        assert page.locator("[data-copy]:visible").count() == 0
        address = page.url
        page.get_by_role("link", name="Predict the routing").click()
        assert "Routing accuracy" in page.locator("main").inner_text()
        page.goto(address)
        page.get_by_role("button", name="Compose into mine").click()
        page.locator(".progress", has_text="writing").wait_for()
        (tmp_path / "go").touch()
        page.get_by_role("link", name="Open the composition").wait_for()  # the page loads again by itself
