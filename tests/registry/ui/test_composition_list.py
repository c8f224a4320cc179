"""Proves: the list of compositions is searched, narrowed and sorted by its address, without a script."""

from collections.abc import Iterator
from typing import Any

import pytest

from registry import EnsembleRecipe, Recipe, Registry
from tests.pages import Pages, served
from tests.registry.ui.test_every_kind import evaluated, recorded


@pytest.fixture
def made(filled: Registry) -> dict[str, str]:
    """Four compositions, oldest first, of which three have scores: name → digest."""
    plans = {
        "zebra": filled.plan(["code", "math"]),
        "apple": filled.plan(["code", "law"], Recipe(router="ridge")),
        "Mango": filled.plan(["code", "math", "law"], EnsembleRecipe()),
        "plum": filled.plan(["math", "law"], Recipe(trunk="ties")),
    }
    scores = {"zebra": {"code": 80.0, "math": 90.0}, "apple": {"code": 95.0, "law": 60.0}, "Mango": {"math": 99.0}}
    found = {}
    for name, plan in plans.items():
        found[name] = recorded(filled, plan, f"/somewhere/{name}")
        if name in scores:
            filled.catalog.record_evaluation(found[name], "1" * 64, scored(name, scores[name]))
    return found


def scored(name: str, scores: dict[str, float], tokens: int = 5000) -> dict[str, Any]:
    """Return what an evaluation found that gave these scores."""
    found = evaluated(name)
    average = sum(scores.values()) / len(scores)
    found["figures"] = found["figures"] | {"score": scores, "average": average}
    return found | {"data": {one: {"digest": "0" * 64, "label": "x", "tokens": tokens} for one in scores}}


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled) as found:
        yield found


def names(pages: Pages, made: dict[str, str], **query: Any) -> list[str]:
    links = [link for link in pages.read("compositions", **query).links if link.startswith("/compositions/")]
    order = [name for link in links for name, digest in made.items() if link.endswith(digest)]
    return list(dict.fromkeys(order))


@pytest.mark.check
def test_compositions_are_sorted(pages: Pages, made: dict[str, str]) -> None:
    assert names(pages, made) == ["plum", "Mango", "apple", "zebra"]
    assert names(pages, made, sort="newest") == names(pages, made, sort="<b>") == names(pages, made)
    assert names(pages, made, sort="name") == ["apple", "Mango", "plum", "zebra"]
    assert names(pages, made, sort="score") == ["Mango", "zebra", "apple", "plum"]
    text = pages.read("compositions", sort="score").text
    assert "The averages here are over different text (1 to 2 domains), so they do not compare" in text
    assert "choose a domain to compare scores on its text" in text
    assert "do not compare" not in pages.read("compositions", q="mango", sort="score").text
    assert names(pages, made, sort="score", domain="code") == ["apple", "zebra"]
    text = pages.read("compositions", sort="score", domain="code").text
    assert "95.0 on 5,000 tokens of code average 77.5 on 10,000 tokens of 2 domains 500 parameters per token" in text
    assert "do not compare" not in text


def test_scores_of_a_domain_are_on_the_text_that_most_were_scored_on(
    filled: Registry, pages: Pages, made: dict[str, str]
) -> None:
    found = scored("zebra", {"code": 99.0}, tokens=90_000)
    found["data"]["code"]["digest"] = "1" * 64
    filled.catalog.record_evaluation(made["zebra"], "2" * 64, found)  # apple was not scored on it
    assert names(pages, made, sort="score", domain="code") == ["apple", "zebra"]
    text = pages.read("compositions", sort="score", domain="code").text
    assert "80.0 on 5,000 tokens of code" in text
    assert "do not all compare" not in text
    found = scored("plum", {"code": 97.0})
    found["data"]["code"]["digest"] = "2" * 64
    filled.catalog.record_evaluation(made["plum"], "1" * 64, found)
    assert names(pages, made, sort="score", domain="code") == ["plum", "apple", "zebra"]
    text = pages.read("compositions", sort="score", domain="code").text
    assert "not all on the same text (other text or another expert of code), so they do not all compare" in text


@pytest.mark.check
def test_averages_on_other_text_of_the_same_domains_do_not_compare(
    filled: Registry, pages: Pages, made: dict[str, str]
) -> None:
    def text() -> str:
        return pages.read("compositions", of="law", q="math").text  # Mango and plum

    found = scored("plum", {"math": 97.0})
    filled.catalog.record_evaluation(made["plum"], "1" * 64, found)
    assert "do not compare" not in text()
    found["data"]["math"]["digest"] = "2" * 64
    filled.catalog.record_evaluation(made["plum"], "1" * 64, found)
    assert "(the same domains, but not the same text), so they do not compare" in text()


def test_compositions_are_searched_and_narrowed(pages: Pages, made: dict[str, str]) -> None:
    assert names(pages, made, of="law") == names(pages, made, of="law@1") == ["plum", "Mango", "apple"]
    assert names(pages, made, of="nobody") == []
    assert "No composition matches" in pages.read("compositions", of="nobody").text
    assert names(pages, made, domain="math") == ["Mango", "zebra"]
    assert names(pages, made, domain="biomed") == []
    assert names(pages, made, q="MANGO") == ["Mango"]
    assert names(pages, made, q="somewhere ridge") == ["apple"]
    assert names(pages, made, q=made["zebra"][:9]) == ["zebra"]
    assert names(pages, made, q="ensemble law") == ["Mango"]
    assert names(pages, made, q="law", of="math", domain="math", sort="name") == ["Mango"]


def test_the_words_that_pages_have_for_a_composition_are_found(
    filled: Registry, pages: Pages, made: dict[str, str]
) -> None:
    made["fig"] = recorded(filled, filled.plan(["code", "math"], Recipe(to="dense", trunk="mean")), "/somewhere/fig")
    assert names(pages, made, q="averag") == names(pages, made, q="Weights averaged") == ["fig"]
    assert names(pages, made, q="one dense model") == ["fig"]
    assert names(pages, made, q="sparse") == ["plum", "apple", "zebra"]
    assert names(pages, made, q="text so far sparse") == ["plum", "zebra"]
    assert names(pages, made, q="by TIES") == ["plum"]
    made["grape"] = recorded(filled, filled.plan(["code", "math", "law"]), "/somewhere/grape")
    assert "same as zebra , but with law@1 added" in pages.read("compositions", q="grape").text
    assert "1–1 of 1 composition" in pages.read("compositions", q="Added").text


def test_compositions_with_an_opted_out_member_are_found(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    assert names(pages, made, gone="1") == names(pages, made, q="opted-out") == []
    filled.opt_out("code")
    assert names(pages, made, gone="1") == ["Mango", "apple", "zebra"]
    assert names(pages, made, q="opted out") == names(pages, made, q="opted-out") == ["Mango", "apple", "zebra"]
    assert names(pages, made, gone="1", q="apple") == ["apple"]
    page = pages.read("compositions", gone="1", q="apple")
    assert ("input", "checked", None) in page.attributes


def test_the_address_of_a_page_keeps_what_was_asked_for(
    pages: Pages, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.ui.composition_list.PAGE", 2)
    page = pages.read("compositions", of="law", sort="name", q="somewhere")
    assert "/compositions?q=somewhere&of=law&sort=name&page=2" in page.links
    assert names(pages, made, of="law", sort="name", q="somewhere", page="2") == ["plum"]
    forms = [(tag, value) for tag, name, value in page.attributes if name == "action"]
    assert ("form", "/compositions") in forms
    assert ("input", "somewhere") in [(tag, value) for tag, name, value in page.attributes if name == "value"]


def test_few_tokens_and_scores_over_100_are_said_on_the_list(
    pages: Pages, filled: Registry, made: dict[str, str]
) -> None:
    text = pages.read("compositions").text
    assert "A score can exceed 100: " in text
    assert "few tokens" not in text
    filled.catalog.record_evaluation(made["plum"], "2" * 64, scored("plum", {"law": 101.0}, 1999))
    text = pages.read("compositions").text
    assert "few tokens" in text
    assert "below 2,000 tokens of a domain" in text
