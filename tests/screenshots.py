"""Pictures of every page of a registry, light, dark and on a phone: `python -m tests.screenshots HOME OUT [PAGE…]`.

Names each file after its page and its look, such as `home-dark.png`, and prints pages that scroll sideways or whose
console says something. With names of pages, only these are taken.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from registry import Registry
from tests.pages import Pages, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "is_mobile": True},
}
MOST = 8
"""Compositions and versions of each kind that are taken."""


def addresses(registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of every kind of page."""
    yield from {"home": "/", "search": "/?q=code&all=1", "compositions": "/compositions", "log": "/log"}.items()
    yield from {"compose": "/compose", "error": "/versions/nobody"}.items()
    for number, record in enumerate(registry.compositions()[-MOST:], 1):
        yield f"composition-{number}", f"/compositions/{record.digest}"
        yield f"report-{number}", f"/compositions/{record.digest}/report"
    versions = registry.versions(everything=True)
    of_kind = {kind: [one for one in versions if (one.kind, one.state) == kind] for kind in
               (("expert", "active"), ("base", "active"), ("expert", "withdrawn"), ("expert", "purged"))}  # fmt: skip
    for (kind, state), found in of_kind.items():
        for number, version in enumerate(found[:MOST], 1):
            yield f"{kind}-{state}-{number}", f"/versions/{version.ref}"
    active = of_kind["expert", "active"]
    if active:
        yield "comparison", f"/versions/{active[0].ref}/comparison"
        chosen = "&".join(f"e={version.ref}" for version in active[:3])
        yield "compose-chosen", f"/compose?{chosen}"


def take(pages: Pages, found: list[tuple[str, str]], out: Path) -> None:
    """Write the pictures, with the browser of this machine."""
    from playwright.sync_api import sync_playwright

    executable = next((path for path in CHROMIUM if Path(path).exists()), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for look, options in LOOKS.items():
            tab = browser.new_context(**options).new_page()  # type: ignore[arg-type]   # as the browser takes them
            tab.set_default_timeout(300_000)
            said = _listen(tab)
            for name, address in found:
                tab.goto(pages.address + address)
                tab.wait_for_selector("[aria-busy],[data-load]", state="detached")
                tab.screenshot(path=out / f"{name}-{look}.png", full_page=True)
                if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    print(f"{name} ({look}) scrolls sideways")
                if said and name != "error":
                    print(f"{name} ({look}): {said}")
                said.clear()
        browser.close()


def _listen(tab: "Page") -> list[str]:
    """Return the list to which everything that the console of a page says is added."""
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    return said


def main() -> None:
    """Take the pictures that the command line asks for."""
    home, out, *wanted = sys.argv[1:]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with Registry(home) as registry, served(registry) as pages:
        take(pages, [(name, path) for name, path in addresses(registry) if not wanted or name in wanted], folder)


if __name__ == "__main__":
    main()
