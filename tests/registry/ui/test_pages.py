"""Proves: errors are pages with a way on; the log goes back in pages; texts inject nothing; nothing is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from registry.ui.site import Site
from tests.conftest import files_of
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import HOSTILE, composed, evaluation
from tests.store.test_catalog import new


def test_the_log_goes_back_in_pages(filled: Registry, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.log.PAGE", 4)
    newest = pages.read("log")
    older = next(link for link in newest.links if "before=" in link)
    assert "law@1" not in newest.text or "base@1" not in newest.text
    rest = Page(pages.ask(older).text)
    assert "base@1" in rest.text
    assert not [link for link in rest.links if "before=" in link]


def test_commands_in_errors_are_on_the_same_registry(filled: Registry) -> None:
    with served(filled, ("reg", "--home", "/a b")) as pages:

        def commands(*path: str, status: int = 404, **query: Any) -> list[str]:
            found = pages.read(*path, status=status, **query).attributes
            return [value for _, name, value in found if name == "data-copy" and value]

        assert commands("versions", "nope") == ["reg --home '/a b' list"]
        assert commands("compositions", "abcdef") == ["reg --home '/a b' compositions"]
        assert commands("compose", status=200, e="nope") == ["reg --home '/a b' list"]
        text = pages.read("compose", e=["base", "law"]).text
        assert "reg --home '/a b' add-expert" in text


def test_commands_name_a_database_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Registry(tmp_path / "home", database="sqlite:///some.sqlite") as registry:
        assert registry.catalog.place == f"sqlite:///{tmp_path / 'some.sqlite'}"


def test_a_hint_is_taken_apart_into_a_command_and_words(filled: Registry) -> None:
    site = Site(filled, ("reg", "--home", "/h"))
    assert site.next_step(None) == ("", "")
    assert site.next_step("see what reg evaluate shows") == ("", "see what reg evaluate shows")
    assert site.next_step("register it: reg add-base a B; those registered: reg list") == (
        "", "register it: reg --home /h add-base a B; those registered: reg --home /h list",
    )  # fmt: skip
    assert site.next_step("run: reg list --all, which shows the aliases there are") == (
        "reg --home /h list --all", "which shows the aliases there are",
    )  # fmt: skip
    assert site.next_step("run: reg show a; or reg compositions, which lists all") == (
        "reg --home /h show a", "or reg --home /h compositions, which lists all",
    )  # fmt: skip
    assert site.next_step("the first makes one: reg --home /x add-base a B")[1].endswith(": reg --home /x add-base a B")


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/nowhere", 404, "<strong>This page does not exist</strong>"),
        ("/versions/mth", 404, "did you mean &#39;math&#39;"),
        ("/versions/math@7", 404, "<strong>math has no version 7"),
        ("/versions/%3Cb%3E", 400, "&lt;b&gt;"),
        ("/compositions/abcdef", 404, "<strong>There is no composition"),
        ("/compositions/xyz", 404, "no composition"),
        ("/compose/preview?e=", 400, ""),
    ],
)
def test_errors_are_pages_with_a_way_on(pages: Pages, path: str, status: int, told: str) -> None:
    answer = pages.ask(path)
    assert (answer.status, told in answer.text) == (status, True), answer.text
    assert "Next: " in answer.text
    Page(answer.text)


def test_a_fault_shows_no_traceback(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
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
    catalog.record_evaluation(digest, "1" * 64, evaluation(HOSTILE[0]))
    for text in HOSTILE:
        pages.read(q=text)
        pages.read(tag=f"label={text}")
        pages.read("compose", q=text, e=text, trunk=text)
        pages.read("compositions", of="math")
    assert "{{ 7 * 7 }}{% raw %}" in pages.read("versions", "hostile@1").text
    pages.read("versions", "code@1")
    pages.read("compositions", digest)
    pages.read("compose", e="code")
    pages.read("log")
    for where in pages.asked:
        answer = pages.ask(where).text
        page = Page(answer)
        assert "<script>window" not in answer
        assert "<img" not in answer
        names = {name for _, name, _ in page.attributes}
        assert not {name for name in names if name.startswith("on")} | (names & {"autofocus", "style"})
        assert not [link for link in page.links if not link.startswith(("/", "#"))]


@pytest.mark.check
def test_nothing_in_the_home_changes(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    before = _stable(filled.home.path)
    for path in ("/", "/versions/math@1", "/versions/math@1/comparison", "/versions/math@1/opt-out", "/compositions",
                 f"/compositions/{digest}", "/compose?e=math&e=code", "/compose/preview?e=math&e=code",
                 "/log"):  # fmt: skip
        assert pages.ask(path).status == 200
    assert _stable(filled.home.path) == before


def _stable(home: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(home).items() if not name.endswith(("-wal", "-shm"))}
