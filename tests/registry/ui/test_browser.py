"""Proves, in Chromium: no page has an error, an accessibility fault or a sideways scroll; what the script adds works.

Skipped where there is no Chromium. The check for accessibility needs axe-core: `AXE_CORE` names its axe.min.js.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from registry import EnsembleRecipe, Registry
from tests.pages import Pages, served
from tests.registry.ui.examples import HOSTILE, composed, evaluation
from tests.registry.ui.test_every_kind import LONG, evaluated, recorded

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
LIGHT: dict[str, Any] = {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}}
DARK: dict[str, Any] = {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}
PHONE: dict[str, Any] = {"color_scheme": "light", "viewport": {"width": 360, "height": 740}, "is_mobile": True}
"""Narrower than the 390 pixels of most phones."""


@pytest.fixture(scope="module")
def pages(zoo: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A registry with hostile tags, an opted-out expert, a composition and its scores."""
    folder = tmp_path_factory.mktemp("browser")
    with Registry(folder / "home") as registry:
        registry.add_base("base", zoo.base)
        for name in ("code", "math", "law", "german"):
            registry.add_expert(name, zoo.experts[name])
        for number, text in enumerate(HOSTILE):
            registry.catalog.set_tags(registry.resolve("law"), {f"tag{number}": text.replace("\x00", "")})
        registry.catalog.set_alias(registry.resolve("law"), HOSTILE[1])
        registry.alias("code", "stable")
        digest = composed(registry, folder / "<b>moe", "math", "code", "law")
        registry.catalog.record_evaluation(digest, "1" * 64, evaluation(HOSTILE[0]))
        registry.opt_out("german")
        registry.add_expert(LONG, zoo.experts["german"], allow_unrelated=True, tags={"t" * 90: "v" * 200})
        long = composed(registry, folder / ("f" * 200), LONG, "code")
        registry.catalog.record_evaluation(long, "1" * 64, evaluation("l" * 300))
        ensemble = recorded(registry, registry.plan(["code", "math"], EnsembleRecipe()), "ensemble")
        registry.catalog.record_evaluation(ensemble, "1" * 64, evaluated("ensemble"))
        with served(registry) as found:
            found.asked += [
                "/",
                f"/?q={HOSTILE[0]}&all=1",
                "/versions/law@1",
                "/versions/german@1",
                "/compositions",
                f"/compositions/{digest}",
                "/compose?e=code@1&e=math@1&e=law@1",
                "/compose?e=nobody",
                "/log",
                "/nowhere",
                f"/versions/{LONG}@1",
                f"/versions/{LONG}@1/comparison",
                f"/compositions/{long}",
                f"/compositions?of={LONG}",
                f"/compositions/{ensemble}",
                f"/compositions/compare?c={digest}&c={long}&c={ensemble}",
                f"/compose?e={LONG}@1&e=code@1",
                f"/?q={LONG}",
            ]
            yield found


@contextmanager
def tab(browser: "Browser", **options: Any) -> "Iterator[tuple[BrowserContext, Tab, list[str]]]":
    """Open a window of its own; gives what its console and its faults say too."""
    context = browser.new_context(**options)
    context.set_default_timeout(600_000)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"fault: {error}"))
    page.on("requestfailed", lambda request: said.extend(_failed(request)))
    try:
        yield context, page, said
    finally:
        context.close()


def _failed(request: Any) -> list[str]:
    """Return what to say of a request, unless the browser let go of it: of the icon, say, when the next page opens."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"failed: {request.url}: {request.failure}"]


def loaded(page: "Tab") -> None:
    """Wait until every part has loaded."""
    page.wait_for_selector("[aria-busy],[data-load]", state="detached")


@pytest.mark.check
@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_every_page_is_without_fault(browser: "Browser", pages: Pages, options: dict[str, Any]) -> None:
    with tab(browser, **options) as (_, page, said):
        for path in pages.asked if options is not DARK else pages.asked[:7:2]:
            page.goto(pages.address + path)
            loaded(page)
            known = [text for text in said if path == "/nowhere" and "404" in text]
            assert said == known, path
            said.clear()
            assert page.evaluate("window.hacked") is None, path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert page.locator("h1").count() == 1, path
            if AXE.is_file() and options is not PHONE:
                page.evaluate(AXE.read_text(encoding="utf-8"))
                found = page.evaluate("axe.run()")["violations"]
                faults = [(one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"]) for one in found]
                assert faults == [], path


@pytest.mark.check
def test_ticking_shows_plan_preview_and_command_by_keyboard_alone(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (context, page, said):
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(f"{pages.address}/compose")
        for name in ("code@1", "math@1"):
            page.locator(f"input[value='{name}']").focus()
            page.keyboard.press("Space")
        command = page.locator("#result .command code")
        command.filter(has_text="--experts code@1,math@1").wait_for()
        loaded(page)
        assert page.locator("[data-count]").inner_text() == "2 ticked"
        assert "Routing accuracy" in page.locator("#preview").inner_text()
        page.select_option("select[name=trunk]", "mean")
        command.filter(has_text="--trunk mean").wait_for()
        page.locator("#result [data-copy]").first.focus()
        page.keyboard.press("Enter")
        page.locator("#result [data-copy]", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == command.inner_text()
        page.select_option("select[name=to]", "ensemble")
        command.filter(has_text="--to ensemble").wait_for()
        assert not page.locator("select[name=router]").is_visible()
        assert page.locator("select[name=routing]").is_visible()
        loaded(page)
        address = page.url
        assert "e=code%401&e=math%401" in address
        page.goto(address)  # what is chosen is in the address
        assert page.locator("input[name=e]:checked").count() == 2
        assert "--to ensemble" in command.inner_text()
        assert said == []


@pytest.mark.check
def test_searching_in_the_composer_keeps_who_is_ticked(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, said):
        page.goto(f"{pages.address}/compose?e=math@1")
        page.locator("input[name=q]").type("code")
        page.locator("input[value='law@1']").wait_for(state="detached")
        values = page.locator("input[name=e]").evaluate_all("found => found.map(one => one.value)")
        assert values == ["math@1", "code@1"]
        assert page.locator("input[name=q]").evaluate("field => field === document.activeElement")
        assert said == []


@pytest.mark.check
def test_the_chosen_colours_stay(browser: "Browser", pages: Pages) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with tab(browser, **LIGHT) as (_, page, said):
        page.goto(pages.address)
        before = page.evaluate(ground)
        page.get_by_role("button", name="Dark colours").click()
        after = page.evaluate(ground)
        page.goto(f"{pages.address}/log")
        assert page.evaluate(ground) == after != before
        assert said == []


@pytest.mark.check
def test_it_works_without_the_script(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT, java_script_enabled=False) as (_, page, _said):
        page.goto(pages.address)
        page.fill("input[name=q]", "math")
        page.get_by_role("button", name="Search").click()
        assert page.locator(".expert h3 a").all_inner_texts() == ["math@1"]
        page.locator(".expert h3 a").click()
        page.get_by_role("link", name="Compare with the others").click()
        page.locator("summary", has_text="Distances").click()
        assert "same base" in page.locator("main").inner_text()
        page.goto(f"{pages.address}/compose")
        page.check("input[value='code@1']")
        page.check("input[value='law@1']")
        page.get_by_role("button", name="Show the plan").click()
        assert "--experts code@1,law@1" in page.locator("#result").inner_text()
        page.get_by_role("link", name="Predict the routing").click()
        assert "Routing accuracy" in page.locator("main").inner_text()
        assert page.locator("[data-copy]:visible").count() == 0


@pytest.mark.check
def test_dots_stand_beside_names_and_bars_have_one_scale(browser: "Browser", filled: Registry) -> None:
    digest = recorded(filled, filled.plan(["code", "math"]), "/somewhere/moe")
    found = evaluated("moe")
    found["figures"] = found["figures"] | {"average": 100.1}
    found["oracle"] = found["oracle"] | {"average": 99.0}
    filled.catalog.record_evaluation(digest, "1" * 64, found)
    with served(filled) as own, tab(browser, **PHONE | {"viewport": {"width": 390, "height": 844}}) as (_, page, _said):
        page.goto(f"{own.address}/compositions/{digest}")
        bars = [_box(bar)["width"] for bar in page.locator(".against .bar").all()]
        assert len(bars) == 3
        assert len(set(bars)) == 1
        names = page.locator("table .named:visible, table .ref:visible").all()
        assert len(names) >= 4
        for name in names:
            dot, text = (_box(name.locator(part)) for part in (".dot", "bdi"))
            assert text["y"] < dot["y"] + dot["height"] / 2 < text["y"] + text["height"], name.inner_text()
            assert dot["x"] < text["x"]


def _box(part: Any) -> Any:
    return part.bounding_box()


@pytest.mark.check
def test_the_server_gone_is_said(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (_, page, _said):
        page.goto(f"{pages.address}/compose")
        page.route("**/*", lambda route: route.abort())
        page.check("input[value='code@1']")
        page.get_by_text("Is reg ui still running?").wait_for()
