"""Proves, in Chromium: no page has an error, an accessibility fault or a sideways scroll; what the script adds works.

Compositions are found, compared and evaluated by keys alone, and the list of jobs follows itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from registry import Recipe, Registry
from tests.pages import Pages, served
from tests.registry.ui.browsing import DARK, LIGHT, PHONE, enter, faults, loaded, tab
from tests.registry.ui.examples import HOSTILE, ORACLE, composed, record
from tests.registry.ui.test_every_kind import LONG

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab


@pytest.fixture(scope="module")
def pages(zoo: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A registry with hostile tags, an opted-out expert, compositions and their scores."""
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
        record(registry, digest, label=HOSTILE[0])
        registry.opt_out("german")
        registry.add_expert(LONG, zoo.experts["german"], allow_unrelated=True, tags={"t" * 90: "v" * 200})
        long = composed(registry, folder / ("f" * 200), LONG, "code")
        record(registry, long, label="l" * 300)
        ensemble = composed(registry, "ensemble", "code", "math", recipe=Recipe(to="ensemble"))
        record(registry, ensemble)
        with served(registry) as found:
            found.asked += [
                *("/", f"/?q={HOSTILE[0]}&all=1", f"/?q={LONG}", "/log", "/nowhere"),
                *("/versions/law@1", "/versions/german@1", f"/versions/{LONG}@1", f"/versions/{LONG}@1/comparison"),
                *(
                    "/compositions",
                    f"/compositions?of={LONG}",
                    f"/compositions/compare?c={digest}&c={long}&c={ensemble}",
                ),
                *(f"/compositions/{one}" for one in (digest, long, ensemble)),
                *("/compose?e=code@1&e=math@1&e=law@1", "/compose?e=nobody", f"/compose?e={LONG}@1&e=code@1"),
            ]
            yield found


@pytest.mark.check
@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_every_page_is_without_fault(browser: "Browser", pages: Pages, options: dict[str, Any]) -> None:
    with tab(browser, **options) as (page, said):
        for path in pages.asked if options is not DARK else pages.asked[::5]:
            page.goto(pages.address + path)
            loaded(page)
            known = [text for text in said if path == "/nowhere" and "404" in text]
            assert said == known, path
            said.clear()
            assert page.evaluate("window.hacked") is None, path
            assert page.locator("h1").count() == 1, path
            assert faults(page) == [], path


@pytest.mark.check
def test_ticking_shows_plan_preview_and_command_by_keyboard_alone(browser: "Browser", pages: Pages) -> None:
    with tab(browser, **LIGHT) as (page, said):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
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
        page.goto(f"{pages.address}/compose?e=math@1")
        page.locator("input[name=q]").type("code")  # searching keeps who is ticked
        page.locator("input[value='law@1']").wait_for(state="detached")
        values = page.locator("input[name=e]").evaluate_all("found => found.map(one => one.value)")
        assert values == ["math@1", "code@1"]
        assert page.locator("input[name=q]").evaluate("field => field === document.activeElement")
        assert said == []
        page.route("**/*", lambda route: route.abort())  # the server is gone
        page.check("input[value='code@1']")
        page.get_by_text("Is reg ui still running?").wait_for()
        said.clear()


@pytest.mark.check
def test_dots_stand_beside_names_and_bars_have_one_scale(browser: "Browser", filled: Registry) -> None:
    digest = composed(filled, "/somewhere/moe", "code", "math")
    record(filled, digest, figures={"average": 100.1}, oracle=ORACLE | {"average": 99.0})
    with served(filled) as own, tab(browser, **PHONE | {"viewport": {"width": 390, "height": 844}}) as (page, _):
        page.goto(f"{own.address}/compositions/{digest}")
        bars = [_box(bar)["width"] for bar in page.locator(".verdict .bar").all()]
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


@pytest.fixture
def digest(filled: Registry, work: Path, tmp_path: Path) -> str:
    """A composition with a folder and scores, of which that on code is better than that of a newer one."""
    (tmp_path / "moe").mkdir()
    (work / "math.txt").write_text("text")
    found = composed(filled, tmp_path / "moe", "code", "math")
    other = composed(filled, tmp_path / "dense", "code", "math", recipe=Recipe(to="dense", trunk="mean"))
    record(filled, found, figures={"score": {"code": 97.0, "math": 80.0}, "average": 80.0})
    record(filled, other, figures={"average": 90.0})
    return found


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
    browser: "Browser", followed: Pages, digest: str, script: bool
) -> None:
    with tab(browser, **LIGHT, java_script_enabled=script) as (page, _):
        page.set_default_timeout(10_000)
        page.goto(f"{followed.address}/compositions")
        assert page.locator(".composition h2").all_inner_texts() == ["dense", "moe"]
        tab_to(page, "input[name=q]")
        page.keyboard.type("code@1")
        tab_to(page, "select[name=domain]")
        page.keyboard.type("code")
        tab_to(page, "select[name=sort]")
        page.keyboard.type("best")
        tab_to(page, ".search button")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="All compositions").wait_for()  # which only a narrowed list has
        assert page.locator(".composition h2").all_inner_texts() == ["moe", "dense"]
        for _number in range(2):
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


@pytest.mark.check
@pytest.mark.parametrize("options", [LIGHT, PHONE], ids=["light", "phone"])
def test_an_evaluation_is_started_by_keyboard_and_the_list_follows_it(
    browser: "Browser", followed: Pages, digest: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    with tab(browser, **options) as (page, _):
        enter(page, followed)
        page.goto(f"{followed.address}/compositions/{digest}")
        page.locator("summary", has_text="Score it on text").focus()
        for is_open in (False, True):  # it is open, as few tokens were scored
            page.keyboard.press("Enter")
            page.wait_for_function(f"document.activeElement.parentElement.open === {str(is_open).lower()}")
        page.get_by_label("math", exact=True).focus()
        page.keyboard.type("math.txt")
        assert faults(page) == []
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/*")
        title = "Evaluate moe on math (96 windows a domain, with baselines, with perfect routing)"
        assert page.locator("h1").inner_text() == title
        assert "--data math=math.txt" in page.locator(".job > .command code").inner_text()
        page.goto(f"{followed.address}/jobs")
        page.get_by_text("1 job going on").wait_for()
        page.locator(".joblist a").focus()
        (tmp_path / "go").touch()
        page.get_by_text("Nothing is going on").wait_for()  # without being loaded again
        assert page.locator("[data-job-status]").inner_text() == "0 jobs going on."
        assert page.evaluate("document.activeElement.textContent") == title  # it keeps its focus
        assert page.locator("[data-follow]").count() == 0
        assert faults(page) == []
