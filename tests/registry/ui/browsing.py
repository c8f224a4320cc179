"""Windows of Chromium on the pages of a registry, what they say, and a job that is followed in them.

The check for accessibility needs axe-core: `AXE_CORE` names its axe.min.js.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.pages import Pages
from tests.screenshots import AXE

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

LIGHT: dict[str, Any] = {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}}
DARK: dict[str, Any] = {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}
PHONE: dict[str, Any] = {"color_scheme": "light", "viewport": {"width": 360, "height": 740}, "is_mobile": True}
"""Narrower than the 390 pixels of most phones."""

FOLLOWED = """
import json, os, sys, time
def tell(text): print(text, file=sys.stderr, flush=True)
tell("progress: solving 2/2 layer")
tell("a remark <b>")
while not os.path.exists(sys.argv[1]):
    tell("progress: writing 500/2000 B")
    time.sleep(0.1)
print(json.dumps({"digest": "0" * 64, "parameters": 1000, "bytes": 2000}))
"""
"""A command that goes on until the file of its first argument is there."""


@contextmanager
def tab(browser: "Browser", **options: Any) -> "Iterator[tuple[Tab, list[str]]]":
    """Open a window of its own; gives what its console and its faults say too, which is nothing at its end."""
    context = browser.new_context(**options)
    context.set_default_timeout(600_000)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"fault: {error}"))
    page.on("requestfailed", lambda request: said.extend(_failed(request)))
    try:
        yield page, said
        assert said == []
    finally:
        context.close()


def _failed(request: Any) -> list[str]:
    """Return what to say of a request, unless the browser let go of it: of the icon, say, when the next page opens."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"failed: {request.url}: {request.failure}"]


def enter(page: "Tab", pages: Pages) -> None:
    """Open the address that `reg ui --write` prints."""
    assert pages.access is not None
    page.goto(f"{pages.address}/?token={pages.access.token}")
    page.wait_for_url(f"{pages.address}/")


def loaded(page: "Tab") -> None:
    """Wait until every part has loaded."""
    page.wait_for_selector("[aria-busy],[data-load]", state="detached")


def faults(page: "Tab") -> list[str]:
    """Return whether it scrolls sideways, and the faults of accessibility, where axe-core is there."""
    found = [] if page.evaluate("document.documentElement.scrollWidth <= innerWidth") else ["it scrolls sideways"]
    if AXE.is_file():
        page.evaluate(AXE.read_text(encoding="utf-8"))
        wrong = page.evaluate("axe.run()")["violations"]
        found += [f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}" for one in wrong]
    return found
