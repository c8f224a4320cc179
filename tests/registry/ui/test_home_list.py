"""Proves: Home lists, searches and narrows versions, in pages, and says what to do where there are none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from registry.ui.site import url
from tests.pages import Page, Pages, served
from tests.store.test_catalog import new


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Pages]:
    """A registry of 120 versions, which are rows alone, of 12 experts."""
    with Registry(tmp_path / "home") as registry:
        for number in range(120):
            tags = {"third": "yes"} if number % 3 == 0 else {"number": str(number)}
            registry.catalog.add_version(
                new(f"expert-{number % 12:02}", str(number // 12), arrays="", tags=tags, parameters=number)
            )
        with served(registry) as found:
            yield found


def test_an_empty_registry_says_what_to_do(tmp_path: Path) -> None:
    with Registry(tmp_path / "home") as registry, served(registry, ("reg", "--home", "a b")) as pages:
        assert "reg --home 'a b' add-expert NAME CKPT" in pages.read().text
        assert "Nothing was composed yet" in pages.read("compositions").text
        assert "No expert is registered yet" in pages.read("compose").text
        assert "Nothing happened yet" in pages.read("log").text


@pytest.mark.check
def test_the_first_page_lists_searches_and_narrows(filled: Registry, pages: Pages) -> None:
    catalog = filled.catalog
    catalog.set_tags(filled.resolve("law"), {"team": "Courts", "language": "en"})
    catalog.set_alias(filled.resolve("code"), "stable")
    filled.opt_out("german")

    def refs(**query: Any) -> list[str]:
        links = pages.read(**query).links
        return list(dict.fromkeys(link.removeprefix("/versions/") for link in links if "/versions/" in link))

    assert refs() == ["base@1", "biomed@1", "code@1", "law@1", "math@1"]
    assert refs(all=1) == ["base@1", "biomed@1", "code@1", "german@1", "law@1", "math@1"]
    assert refs(kind="base") == ["base@1"]
    assert refs(tag="team=Courts") == refs(q="courts") == refs(q="TEAM=cour") == refs(q="la en") == ["law@1"]
    assert refs(q="stab") == refs(q="code@stable") == refs(q="code@1") == ["code@1"]
    assert refs(q=filled.resolve("math").digest[:9]) == ["math@1"]
    assert refs(q="math code") == refs(q="%") == refs(q="_") == refs(tag="team=x") == []
    assert refs(tag=["team=Courts", "language=en"], q="law", kind="expert") == ["law@1"]
    assert refs(kind="nonsense", page="-1", tag="no-equals") == refs()
    assert url(tag=["team=Courts"]) in pages.read().links  # a tag can be chosen,
    assert url() in pages.read(tag="team=Courts").links  # and dropped


@pytest.mark.check
def test_following_next_shows_everything_once(many: Pages) -> None:
    page, found = many.read(), list[str]()
    while True:
        found += dict.fromkeys(link for link in page.links if link.startswith("/versions/"))
        following = [link for link, rel in _links(page) if rel == "next"]
        if not following:
            break
        page = Page(many.ask(following[0]).text)
    assert len(found) == len(set(found)) == 120
    assert "101–120 of 120 versions Previous" not in page.text
    assert "Page 3 of 3" in page.text
    assert "Page 3 of 3" in many.read(page=99).text
    assert "Page 1 of 1" not in many.read(tag="third=yes").text
    assert "40 versions" in many.read(tag="third=yes").text


def _links(page: Page) -> list[tuple[str, str | None]]:
    rels = [value for tag, name, value in page.attributes if (tag, name) == ("a", "rel")]
    hrefs = [
        page.attributes[at + 1][2]
        for at, (tag, name, _) in enumerate(page.attributes)
        if (tag, name) == ("a", "rel") and page.attributes[at + 1][1] == "href"
    ]
    return [(href or "", rel) for href, rel in zip(hrefs, rels, strict=True)]
