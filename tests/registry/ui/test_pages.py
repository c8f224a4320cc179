"""Proves: errors are pages with a way on; the log goes back in pages and says what an event did in words.

And texts inject nothing, nothing is written, and what was computed is forgotten when anything changes.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from registry.ui.site import PageCache, Site
from registry.ui.wording import details
from tests.conftest import files_of
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import HOSTILE, commands, composed, record
from tests.store.test_catalog import new


def test_the_log_goes_back_in_pages(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.overview.LOG_PAGE", 4)
    newest = pages.read("log")
    older = next(link for link in newest.links if "before=" in link)
    assert "law@1" not in newest.text or "base@1" not in newest.text
    rest = Page(pages.ask(older).text)
    assert "base@1" in rest.text
    assert not [link for link in rest.links if "before=" in link]


def test_details_of_an_event_are_said_of_every_form_that_was_written() -> None:
    digests = [character * 64 for character in "abc"]
    two_kept: dict[str, Any] = {"digest": "d" * 64, "deleted": {digests[0]: 20}, "shared": digests[1:]}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"deleted": dict.fromkeys(digests, 1_000), "shared": []}, "3 arrays deleted (3.0 kB)"),
        (two_kept, "1 array deleted (20 B); 2 arrays kept, which other versions share"),
        ({"deleted": digests, "shared": []}, "3 arrays deleted"),  # of a registry that recorded no sizes
        ({"alias": "good", "deleted": True}, "alias good; deleted yes"),
        ({"reason": "licence", "rows": {}, "actor": "me"}, "reason licence"),
    ]
    for found, said in cases:
        assert details(found) == said


def test_commands_are_on_the_same_registry(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(filled, ("reg", "--home", "/a b")) as pages:
        for path, status, query, command in (
            (("versions", "nope"), 404, {}, "reg --home '/a b' list"),
            (("compositions", "abcdef"), 404, {}, "reg --home '/a b' compositions"),
            (("compose",), 200, {"e": "nope"}, "reg --home '/a b' list"),
        ):
            assert commands(pages.read(*path, status=status, **query)) == [command]
        text = pages.read("compose", e=["base", "law"]).text
        assert "reg --home '/a b' add-expert" in text
    monkeypatch.chdir(tmp_path)
    with Registry(tmp_path / "named", database="sqlite:///some.sqlite") as registry:
        assert registry.catalog.place == f"sqlite:///{tmp_path / 'some.sqlite'}"


def test_a_hint_is_taken_apart_into_a_command_and_words(filled: Registry) -> None:
    site = Site(filled, ("reg", "--home", "/h"))
    words = "register it: reg --home /h add-base a B; those registered: reg --home /h list"
    elsewhere = "the first makes one: reg --home /x add-base a B"
    for hint, parts in (
        (None, ("", "")),
        ("see what reg evaluate shows", ("", "see what reg evaluate shows")),
        ("register it: reg add-base a B; those registered: reg list", ("", words)),
        ("run: reg list --all, which shows all", ("reg --home /h list --all", "which shows all")),
        ("run: reg show a; or reg log, which lists", ("reg --home /h show a", "or reg --home /h log, which lists")),
        (elsewhere, ("", elsewhere)),
    ):
        assert site.next_step(hint) == parts


def test_errors_are_pages_with_a_way_on(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, status, told in (
        ("/nowhere", 404, "<strong>This page does not exist</strong>"),
        ("/versions/mth", 404, "did you mean &#39;math&#39;"),
        ("/versions/math@7", 404, "<strong>math has no version 7"),
        ("/versions/%3Cb%3E", 400, "&lt;b&gt;"),
        ("/compositions/abcdef", 404, "<strong>There is no composition"),
        ("/compositions/xyz", 404, "no composition"),
        ("/compose/preview?e=", 400, ""),
    ):
        answer = pages.ask(path)
        assert (answer.status, told in answer.text) == (status, True), answer.text
        assert "Next: " in answer.text
        Page(answer.text)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("a <b>fault</b>")

    monkeypatch.setattr("registry.registry.Registry.count_versions", fail)
    answer = pages.ask("/")
    assert answer.status == 500
    assert "ValueError: a &lt;b&gt;fault&lt;/b&gt;" in answer.text
    assert "Traceback" not in answer.text
    assert "REG_DEBUG=1" in answer.text


@pytest.mark.check
def test_names_tags_and_labels_inject_nothing(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    catalog, content = filled.catalog, filled.resolve("math").content
    for text in HOSTILE:
        statistics = tuple(replace(one, calibration_label=text) for one in filled.resolve("math").statistics)
        plain = text.replace("\x00", "")
        added, _ = catalog.add_version(
            new("hostile", "f", content=content, arrays="", statistics=statistics, tags={plain[:90]: plain})
        )
        catalog.set_alias(added, plain[:90])
        catalog.set_tags(filled.resolve("code"), {"label": plain})
    digest = composed(filled, tmp_path / HOSTILE[1].replace("/", ""), "math", "code")
    record(filled, digest, label=HOSTILE[0])
    for text in HOSTILE:
        pages.read(q=text)
        pages.read(tag=f"label={text}")
        pages.read("compose", q=text, e=text, trunk=text)
    assert "{{ 7 * 7 }}{% raw %}" in pages.read("versions", "hostile@1").text
    for path in (("versions", "code@1"), ("compositions",), ("compositions", digest), ("log",)):
        pages.read(*path)
    pages.read("compose", e="code")
    for where in pages.asked:
        answer = pages.ask(where).text
        page = Page(answer)
        assert "<script>window" not in answer
        assert "<img" not in answer
        names = {name for _, name, _ in page.attributes}
        assert not {name for name in names if name.startswith("on")} | (names & {"autofocus", "style"})
        assert not [link for link in page.links if not link.startswith(("/", "#"))]


@pytest.mark.check
def test_nothing_in_the_home_changes(filled: Registry, pages: Pages, digest: str) -> None:
    record(filled, digest)
    before = _stable(filled.home.path)
    of_version = (f"/versions/math@1{part}" for part in ("", "/comparison", "/opt-out"))
    composer = (f"/compose{part}?e=math&e=code" for part in ("", "/preview"))
    for path in ("/", "/log", "/compositions", f"/compositions/{digest}", *of_version, *composer):
        assert pages.ask(path).status == 200
    assert _stable(filled.home.path) == before


def _stable(home: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(home).items() if not name.endswith(("-wal", "-shm"))}


def test_what_was_computed_is_kept_until_anything_changes() -> None:
    states, made = ["a"], list[int]()
    cache = PageCache(lambda: states[0] if len(states) == 1 else states.pop(0), size=2)

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [cache.get(key, make) for key in "xxy"] == [0, 0, 1]
    assert [cache.get(key, make) for key in "xz"] == [0, 2]
    assert list(cache._values) == ["x", "z"]  # those used least recently go first
    cache.refresh()
    assert len(cache._values) == 2
    states[:] = ["b"]
    cache.refresh()  # a look at any page forgets
    assert len(cache._values) == 0
    assert [cache.get(key, make) for key in "xx"] == [3, 3]
    states[:] = ["c", "d"]  # what changed while it was computed is not kept
    assert [cache.get(key, make) for key in "xx"] == [4, 5]


def test_one_computes_at_a_time() -> None:
    cache, running, most = PageCache(lambda: ""), list[int](), list[int]()

    def make() -> int:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: cache.get(number, make), range(4)))
    assert most == [1] * 4
