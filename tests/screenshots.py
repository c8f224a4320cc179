"""Pictures of every page of a registry, light, dark and on a phone: `python -m tests.screenshots HOME OUT [PAGE…]`.

Names each file after its page and its look, such as `home-dark.png`, and prints pages that scroll sideways, whose
console says something or, with `AXE_CORE` as in the tests, that axe-core finds fault with. With names of pages or their
beginnings, such as `home` or `composition`, only these are taken. The browser may start work, so that its forms are
seen; the jobs that are seen are made up.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from registry import Registry
from registry.ui.jobs import Job
from tests.chromium import CHROMIUM, FLAGS
from tests.pages import Pages, served

LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "is_mobile": True},
}
AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
SLOW = """
import sys, time
for label, done, total, unit in (("solving", 4, 4, "layer"), ("composing", 31_000_000, 64_000_000, "B")):
    print(f"progress: {label} {done}/{total} {unit}", file=sys.stderr, flush=True)
print("code brings few tokens", file=sys.stderr, flush=True)
time.sleep(100_000)
"""
"""A job that is going on for as long as pictures are taken."""

MOST = 8
"""Compositions and versions of each kind that are taken."""


def addresses(registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of every kind of page."""
    yield from {"home": "/", "search": "/?q=code&all=1", "compositions": "/compositions", "log": "/log"}.items()
    yield from {"compose": "/compose", "error": "/versions/nobody", "no-match": "/compositions?q=nothing"}.items()
    yield from {"sorted": "/compositions?sort=score", "jobs": "/jobs", "job": "/jobs/JOB"}.items()
    made = registry.compositions()
    for number, record in enumerate(made[-MOST:], 1):
        yield f"composition-{number}", f"/compositions/{record.digest}"
        yield f"report-{number}", f"/compositions/{record.digest}/report"
    for number in (2, 4):
        if len(made) >= number:
            beside = "&".join(f"c={record.digest[:12]}" for record in made[-number:])
            yield f"beside-{number}", f"/compositions/compare?{beside}"
    for kind, state in (("expert", "active"), ("base", "active"), ("expert", "withdrawn"), ("expert", "purged")):
        found = [one for one in registry.versions(everything=True) if (one.kind, one.state) == (kind, state)]
        for number, version in enumerate(found[:MOST], 1):
            yield f"{kind}-{state}-{number}", f"/versions/{version.ref}"
    if experts := registry.versions(kind="expert"):
        yield "comparison", f"/versions/{experts[0].ref}/comparison"
        yield "compose-chosen", "/compose?" + "&".join(f"e={version.ref}" for version in experts[:3])


def take(pages: Pages, found: list[tuple[str, str]], out: Path) -> None:
    """Write the pictures, with the browser of this machine."""
    from playwright.sync_api import sync_playwright

    job, said = _job_going_on(pages), list[str]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for look, options in LOOKS.items():
            context = browser.new_context(**options)  # type: ignore[arg-type]   # as the browser takes them
            assert pages.access is not None
            context.add_cookies([{"name": pages.access.cookie, "value": pages.access.token, "url": pages.address}])
            tab = context.new_page()
            tab.set_default_timeout(300_000)
            tab.on("console", lambda message: said.append(message.text))
            tab.on("pageerror", lambda error: said.append(str(error)))
            for name, address in found:
                tab.goto(pages.address + address.replace("JOB", job))
                tab.wait_for_selector("[aria-busy],[data-load]", state="detached")
                tab.screenshot(path=out / f"{name}-{look}.png", full_page=True)
                if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    print(f"{name} ({look}) scrolls sideways")
                if said and name != "error":
                    print(f"{name} ({look}): {said}")
                if AXE.is_file():
                    tab.evaluate(AXE.read_text(encoding="utf-8"))
                    for one in tab.evaluate("axe.run()")["violations"]:
                        print(f"{name} ({look}): {one['id']}: {[node['html'] for node in one['nodes']][:3]}")
                said.clear()
        browser.close()


def _job_going_on(pages: Pages) -> str:
    """Start a job beside one that waits, and return its id once it says something."""
    assert pages.jobs is not None
    words = ("compose", "--experts", "code,english", "--out", "code-english/")
    job = pages.jobs.add(Job("Compose code@1, english@1", words, "/compose", "code-english/"))
    pages.jobs.add(Job("Evaluate code-math", ("evaluate", "code-math/"), "/compositions", ""))
    while not pages.jobs.get(job.id).lines:
        time.sleep(0.05)
    return job.id


def main() -> None:
    """Take the pictures that the command line asks for."""
    if len(sys.argv) < 3:
        sys.exit("usage: python -m tests.screenshots HOME OUT [PAGE…]")
    home, out, *wanted = sys.argv[1:]
    folder = Path(out)
    with Registry(home) as registry, served(registry, may_write=True, program=(sys.executable, "-c", SLOW)) as pages:
        every = list(addresses(registry))
        chosen = [(name, path) for name, path in every if not wanted or name.startswith(tuple(wanted))]
        unknown = [one for one in wanted if not any(name.startswith(one) for name, _ in every)]
        if unknown:
            sys.exit(f"no page is called {', '.join(unknown)}; there are {', '.join(name for name, _ in every)}")
        folder.mkdir(parents=True, exist_ok=True)
        take(pages, chosen, folder)
        print(f"{len(chosen) * len(LOOKS)} pictures of {len(chosen)} pages are in {folder}")


if __name__ == "__main__":
    main()
