"""Proves: Home shows what was made, what experts handle, the best scores with their sample, and what is wrong.

It lists, searches and narrows versions, in pages. Pages warn about few tokens, hardly used and opted-out experts.
"""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from registry import Registry
from registry.composition import Recipe
from registry.ui.site import url
from store.catalog import schema
from store.catalog.tables import Event
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import composed, record, values
from tests.store.test_catalog import new


def between(text: str, begin: str, end: str) -> str:
    """Return the part of a page's text from one heading to another."""
    return text[text.index(begin) : text.index(end)]


def test_home_shows_what_was_made_and_what_experts_handle(filled: Registry, pages: Pages) -> None:
    first = composed(filled, "/somewhere/first", "code", "math")
    second = composed(filled, "/somewhere/second", "code", "math", "law", recipe=Recipe(router="ridge"))
    record(filled, first)
    page, narrowed = pages.read(), pages.read(q="code")
    assert "5 expert versions and 1 base model 2 compositions" in page.text
    lately = between(page.text, "Made lately", "Best scores")
    assert lately.index("second") < lately.index("first")  # the latest first
    assert "mixture · regmean · ridge, 2 per token" in lately
    best = between(page.text, "Best scores", "Health")
    assert "over 2 domains: code, math first 89.6 on 2,468 tokens of 2 domains mixture · regmean · context" in best
    assert "second" not in best
    assert page.links.count(f"/compositions/{first}") == 4  # made lately, best, and for what two experts get
    code = between(page.text, " code@1 ", " german@1 ")
    assert "in 2 compositions" in code
    assert "Tokens that first sends to it, by domain: code 75 % math 50 %" in code
    assert "89.6" not in code  # which is the composition's score, not the expert's
    assert "test text: test.jsonl" in values(page, "title", "p")
    said = "Bars: the share of each domain’s tokens that goes to the expert"
    assert page.text.count(said) == 1  # not on every card
    assert page.text.index("Experts and base models") < page.text.index(said) < page.text.index(" code@1 ")
    assert page.links.count(f"/compositions/{second}") == 1
    assert "Made lately" not in narrowed.text
    assert "Health" not in narrowed.text


def test_what_an_expert_gets_is_from_the_best_evaluation_with_it(filled: Registry, pages: Pages) -> None:
    recipes = {"poor": (Recipe(router="ridge"), 70.0), "good": (Recipe(), 90.0), "late": (Recipe(top_k=2), 80.0)}
    digests = {}
    for name, (recipe, average) in recipes.items():
        digests[name] = composed(filled, f"/somewhere/{name}", "code", "math", recipe=recipe)
        routing = {"code": {"code": [average / 100], "math": [0.0]}}
        record(filled, digests[name], figures={"average": average, "routing": routing})
    code = between(pages.read().text, " code@1 ", " german@1 ")
    assert "Tokens that good sends to it, by domain: code 90 %" in code
    record(filled, digests["good"], asked="2", figures={"average": 85.0, "routing": routing})
    assert "Tokens that good sends to it, by domain: code 80 %" in pages.read().text  # the latest is what all show


@pytest.mark.check
def test_home_says_what_of_opted_out_experts_is_left(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    digest = composed(filled, tmp_path / "moe", "math", "code")
    composed(filled, tmp_path / "deleted", "math", "law")
    page = pages.read()
    assert "opted-out" not in page.text.partition("Health")[2]
    assert page.text.index("Health") > page.text.index("Made lately")
    filled.opt_out("math")
    page = pages.read()
    assert page.text.index("Health") < page.text.index("Experts and base models")  # first, at every width
    assert page.links.index(f"/compositions/{digest}") < page.links.index("/versions/code@1")
    health, left = page.text.partition("Health")[2], f"moe math@1 (opted out) {tmp_path / 'moe'} "
    assert "1 opted-out version not purged, still stored: math@1 reg opt-out math@1 --purge" in health
    assert f"1 composed folder may still contain opted-out experts: {left}" in health
    copies = [tmp_path / f"copy-{number}" for number in range(4)]
    for copy in copies:
        copy.mkdir()
        composed(filled, copy, "german", "code")
    filled.opt_out("math", purge=True)
    health = pages.read().text.partition("Health")[2]
    assert "not purged" not in health
    assert f"experts: {left}" in health
    filled.opt_out("german", purge=True)
    page = pages.read()
    health = page.text.partition("Health")[2].partition("Experts and base models")[0]
    assert "5 composed folders may still contain" in health
    assert health.count("@1 (opted out)") == 3
    assert "and 2 more folders: all compositions with an opted-out member" in health
    assert "/compositions?gone=1" in page.links
    for folder in (tmp_path / "moe", *copies):
        folder.rmdir()
    assert "may still contain" not in pages.read().text


def test_home_says_that_the_log_was_changed(filled: Registry) -> None:
    with served(filled) as pages:
        text = pages.read().text
    assert "the log is intact: 6 events" in text
    assert schema.HEAD not in text
    assert "Bars:" not in text  # before an evaluation
    with filled.catalog.engine.execution_options(writing=True).begin() as connection:
        connection.execute(update(Event).where(Event.id == 3).values(action="nothing"))
    with served(filled) as pages:
        text = pages.read().text
    assert "Attention: the log was changed or is incomplete at event 3 (nothing" in text
    assert "reg verify" in text


@pytest.mark.check
def test_few_tokens_are_explained_where_they_are_shown(filled: Registry, pages: Pages, digest: str) -> None:
    for asked, tokens, few in (("1", 1_999, True), ("2", 2_000, False)):
        record(filled, digest, None, tokens, asked=asked)
        page = pages.read("compositions", digest).text
        said = f"Few tokens: {2 * tokens:,} tokens of 2 domains, the smallest of {tokens:,}. Below 2,000 tokens of"
        assert f"{2 * tokens:,} tokens of 2 domains" in page
        assert (said in page) == few
        assert ("--windows 96 --data code=FILE --data math=FILE" in page) == few
        home, listed = pages.read().text, pages.read("compositions").text
        assert home.count("few tokens") == (2 if few else 0)  # the badge, and what it means
        assert ("few tokens" in listed, "below 2,000 tokens of a domain" in listed) == (few, few)
        for text in (page, home, listed):
            assert "A score can exceed 100: " in text


def test_experts_that_are_hardly_used_are_named(filled: Registry, pages: Pages, digest: str) -> None:
    for load, warned in (
        ({"code": 0.88, "math": 0.12}, "math is hardly used: it gets 12.0 % of all tokens; its own domain has 50.0 %"),
        ({"code": 0.87, "math": 0.13}, None),
        ({"copy-1": 0.97, "copy-2": 0.03}, "copy-2 is hardly used: it gets 3.0 % of all tokens; an equal share is 50"),
    ):
        record(filled, digest, figures={"overall_load": load})
        text = pages.read("compositions", digest).text
        assert text.count("is hardly used") == (warned is not None)
        assert warned is None or warned in text


@pytest.mark.check
@pytest.mark.usefixtures("digest")
def test_lists_mark_members_that_were_opted_out(filled: Registry, pages: Pages) -> None:
    composed(filled, "many", "math", "code", "law", "german", "biomed")
    filled.opt_out("math")
    for path in ((), ("compositions",), ("versions", "code@1")):
        page = pages.read(*path)
        assert page.text.count("math@1 (opted out)") == 2
        assert "code@1 (opted out)" not in page.text
        assert values(page, "title", "a").count("opted out") == 2
    filled.opt_out("math", purge=True)
    assert pages.read("compositions").text.count("math@1 (opted out)") == 2


@pytest.mark.check
def test_best_scores_compare_within_the_same_domains_alone(filled: Registry, pages: Pages) -> None:
    scores: dict[str, tuple[Recipe, float, dict[str, int]]] = {
        "one": (Recipe(), 99.0, {"code": 20_000}),
        "low": (Recipe(top_k=2), 80.0, {"code": 20_000, "math": 20_000}),
        "high": (Recipe(router="ridge"), 85.0, {"math": 1_999, "code": 50_000}),
        "other": (Recipe(trunk="mean"), 98.0, {"code": 20_000, "law": 20_000}),
        "three": (Recipe(to="dense"), 70.0, {"code": 3_000, "law": 3_000, "math": 4_000}),
    }
    for name, (recipe, average, tokens) in scores.items():
        digest = composed(filled, f"/somewhere/{name}", "code", "math", recipe=recipe)
        record(filled, digest, None, tokens, figures={"average": average})
    best = between(pages.read().text, "Best scores", "Health")
    order = ["over 3 domains: code, law, math three 70.0", "over 2 domains: code, law other 98.0"]
    order += ["over 2 domains: code, math high 85.0", "low 80.0"]
    places = [best.index(text) for text in order]
    assert places == sorted(places)
    assert "one 99.0" not in best  # three groups
    rows = best.partition("100 is each")[0]
    assert rows.count("few tokens") == 1
    assert "few tokens" in between(rows, "high 85.0", "low 80.0")
    assert "“few tokens”: below 2,000 tokens of a domain, a difference of a point can be chance" in best
    assert "dense model · regmean" in rows


@pytest.mark.check
def test_best_scores_are_on_the_text_that_most_compositions_were_scored_on(filled: Registry, pages: Pages) -> None:
    recipes = {"good": Recipe(), "fair": Recipe(top_k=2), "apart": Recipe(router="ridge")}
    made = {
        name: composed(filled, f"/somewhere/{name}", "code", "math", recipe=recipe) for name, recipe in recipes.items()
    }

    def scored(name: str, asked: str, average: float, digest: str, tokens: int = 5_000, *domains: str) -> None:
        counts = dict.fromkeys(domains or ("code", "math"), tokens)
        record(filled, made[name], None, counts, asked=asked, digest=digest, figures={"average": average})

    scored("good", "1", 95.0, "0")
    scored("fair", "1", 85.0, "0")
    scored("apart", "1", 99.0, "1", 90_000)
    scored("good", "2", 70.0, "2", 90_000, "code")  # later, of one domain: the score of two stays
    two = between(pages.read().text, "Best scores", "100 is each")
    assert two.index("good 95.0") < two.index("fair 85.0")
    assert "apart" not in two
    assert "1 composition scored on other text of these domains" in two
    assert "over 1 domain" not in two  # a list of one that stands in another ranks nothing
    scored("apart", "2", 90.0, "0")
    two = between(pages.read().text, "Best scores", "100 is each")
    assert two.index("good 95.0") < two.index("apart 90.0") < two.index("fair 85.0")
    assert "on other text" not in two


def test_a_composition_of_an_opted_out_expert_says_what_the_report_says(filled: Registry) -> None:
    digest = composed(filled, "/somewhere/moe", "code", "law", "math", recipe=Recipe(trunk="mean"))
    alone = composed(filled, "/somewhere/alone", "math")
    filled.opt_out("math")
    warning = filled.report(digest).warnings[0]
    assert warning.command == "reg compose --experts code,law --trunk mean --out DIR"
    with served(filled, ("reg", "--home", "a b")) as pages:
        page = pages.read("compositions", digest).text
        assert f"{warning.mend} reg --home 'a b' compose --experts code,law --trunk mean --out DIR" in page
        assert "Delete this composition." in pages.read("compositions", alone).text


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
    assert refs(q="math code") == refs(q="%") == refs(q="_") == refs(tag="team=x") == refs(q="math@99999999999") == []
    assert refs(tag=["team=Courts", "language=en"], q="law", kind="expert") == ["law@1"]
    assert refs(kind="nonsense", page="-1", tag="no-equals") == refs()
    assert url(tag=["team=Courts"]) in pages.read().links  # a tag can be chosen,
    assert url() in pages.read(tag="team=Courts").links  # and dropped


def test_following_next_shows_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.overview.PAGE", 10)
    found = list[str]()
    with Registry(tmp_path / "home") as registry, served(registry) as pages:
        for number in range(24):
            tags = {"third": "yes"} if number % 3 == 0 else {"number": str(number)}
            registry.catalog.add_version(new(f"expert-{number % 4}", str(number // 4), arrays="", tags=tags))
        following: str | None = "/"
        while following is not None:
            text = pages.ask(following).text
            found += dict.fromkeys(link for link in Page(text).links if link.startswith("/versions/"))
            link = re.search(r'rel="next" href="([^"]*)"', text)
            following = unescape(link[1]) if link else None
        assert len(found) == len(set(found)) == 24
        assert "Page 3 of 3" in Page(text).text
        assert "Page 3 of 3" in pages.read(page=99).text
        narrowed = pages.read(tag="third=yes").text
        assert "8 versions" in narrowed
        assert "Page 1 of 1" not in narrowed
