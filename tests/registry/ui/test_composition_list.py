"""Proves: the list of compositions is searched, narrowed and sorted by its address, without a script."""

from typing import Any

import pytest

from registry import Recipe, Registry
from tests.pages import Pages
from tests.registry.ui.examples import composed, record, values


@pytest.fixture
def made(filled: Registry) -> dict[str, str]:
    """Four compositions, oldest first, of which three have scores: name → digest."""
    found = {
        "zebra": composed(filled, "/somewhere/zebra", "code", "math"),
        "apple": composed(filled, "/somewhere/apple", "code", "law", recipe=Recipe(router="ridge")),
        "Mango": composed(filled, "/somewhere/Mango", "code", "math", "law", recipe=Recipe(to="ensemble")),
        "plum": composed(filled, "/somewhere/plum", "math", "law", recipe=Recipe(trunk="ties")),
    }
    scores = {"zebra": {"code": 80.0, "math": 90.0}, "apple": {"code": 95.0, "law": 60.0}, "Mango": {"math": 99.0}}
    for name, each in scores.items():
        record(filled, found[name], each, 5000)
    return found


def names(pages: Pages, made: dict[str, str], **query: Any) -> list[str]:
    links = [link for link in pages.read("compositions", **query).links if link.startswith("/compositions/")]
    order = [name for link in links for name, digest in made.items() if link.endswith(digest)]
    return list(dict.fromkeys(order))


@pytest.mark.check
def test_compositions_are_sorted(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    assert names(pages, made) == ["plum", "Mango", "apple", "zebra"]
    assert names(pages, made, sort="newest") == names(pages, made, sort="<b>") == names(pages, made)
    assert names(pages, made, sort="name") == ["apple", "Mango", "plum", "zebra"]
    assert names(pages, made, sort="score") == ["Mango", "zebra", "apple", "plum"]
    text = pages.read("compositions", sort="score").text
    assert "The averages here are over different text (1 to 2 domains), so they do not compare" in text
    assert "do not compare" not in pages.read("compositions", q="mango", sort="score").text
    assert names(pages, made, sort="score", domain="code") == ["apple", "zebra"]
    text = pages.read("compositions", sort="score", domain="code").text
    assert "95.0 on 5,000 tokens of code average 77.5 on 10,000 tokens of 2 domains 500 parameters per token" in text
    assert "do not compare" not in text
    for digest, compare in (("0", True), ("2", False)):  # averages of Mango and plum, both of math alone
        record(filled, made["plum"], {"math": 97.0}, 5000, digest=digest)
        text = pages.read("compositions", of="law", q="math").text
        assert ("(the same domains, but not the same text), so they do not compare" not in text) == compare


def test_scores_of_a_domain_are_on_the_same_text(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["zebra"], {"code": 99.0}, 90_000, asked="2", digest="1")  # apple was not scored on it
    assert names(pages, made, sort="score", domain="code") == ["apple", "zebra"]
    text = pages.read("compositions", sort="score", domain="code").text
    assert "80.0 on 5,000 tokens of code" in text
    assert "do not all compare" not in text
    record(filled, made["plum"], {"code": 97.0}, 5000, digest="2")
    assert names(pages, made, sort="score", domain="code") == ["plum", "apple", "zebra"]
    text = pages.read("compositions", sort="score", domain="code").text
    assert "not all on the same text (other text or another expert of code), so they do not all compare" in text


def test_what_was_added_to_an_earlier_one_is_found(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    composed(filled, "/somewhere/grape", "code", "math", "law")
    found = pages.read("compositions", q="Added").text
    assert "1–1 of 1 composition" in found
    assert "same as zebra , but with law@1 added" in found


def test_compositions_are_searched_and_narrowed(
    filled: Registry, pages: Pages, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(pages, made, of="law") == names(pages, made, of="law@1") == ["plum", "Mango", "apple"]
    assert names(pages, made, of="nobody") == []
    assert "No composition matches" in pages.read("compositions", of="nobody").text
    assert names(pages, made, domain="math") == ["Mango", "zebra"]
    assert names(pages, made, domain="biomed") == []
    assert names(pages, made, q="MANGO") == ["Mango"]
    assert names(pages, made, q="somewhere ridge") == ["apple"]
    assert names(pages, made, q=made["zebra"][:9]) == ["zebra"]
    assert names(pages, made, q="law", of="math", domain="math", sort="name") == ["Mango"]
    assert names(pages, made, q="text so far sparse") == ["plum", "zebra"]  # words that pages have for them
    assert names(pages, made, q="by TIES") == ["plum"]
    assert names(pages, made, gone="1") == names(pages, made, q="opted-out") == []
    filled.opt_out("code")
    assert names(pages, made, gone="1") == ["Mango", "apple", "zebra"]
    assert names(pages, made, q="opted out") == names(pages, made, q="opted-out") == ["Mango", "apple", "zebra"]
    page = pages.read("compositions", gone="1", q="apple")
    assert ("input", "checked", None) in page.attributes
    monkeypatch.setattr("registry.ui.composition_list.PAGE", 2)
    page = pages.read("compositions", of="law", sort="name", q="somewhere")
    assert "/compositions?q=somewhere&of=law&sort=name&page=2" in page.links  # what was asked for is kept
    assert names(pages, made, of="law", sort="name", q="somewhere", page="2") == ["plum"]
    assert "/compositions" in values(page, "action", "form")
    assert "somewhere" in values(page)
