"""Proves: Home shows what was made, what experts handle, the best scores with their sample, and what is wrong.

And a composition's page warns about few tokens and experts that are hardly used.
"""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from registry import Registry
from registry.composition.recipe import Recipe
from store.catalog import schema
from store.catalog.tables import Event
from tests.pages import served
from tests.registry.ui.examples import composed
from tests.registry.ui.test_every_kind import evaluated, recorded


def test_home_shows_what_was_made_and_what_experts_handle(filled: Registry) -> None:
    first = recorded(filled, filled.plan(["code", "math"]), "/somewhere/first")
    second = recorded(filled, filled.plan(["code", "math", "law"], Recipe(router="ridge")), "/somewhere/second")
    filled.catalog.record_evaluation(first, "1" * 64, evaluated("first"))
    with served(filled) as pages:
        page = pages.read()
        narrowed = pages.read(q="code")
    assert "5 expert versions and 1 base model 2 compositions" in page.text
    lately = page.text[page.text.index("Made lately") : page.text.index("Best scores")]
    assert lately.index("second") < lately.index("first")  # the latest first
    assert "mixture · regmean · ridge, 2 per token" in lately
    best = page.text[page.text.index("Best scores") : page.text.index("Health")]
    assert "over 2 domains: code, math first 89.6 on 2,468 tokens of 2 domains mixture · regmean · context" in best
    assert "second" not in best
    assert page.links.count(f"/compositions/{first}") == 4  # made lately, best, and for what two experts get
    code = page.text[page.text.index(" code@1 ") : page.text.index(" german@1 ")]
    assert "in 2 compositions" in code
    assert "Tokens that first sends to it, by domain: code 75 % math 50 %" in code
    assert "89.6" not in code  # which is the composition's score, not the expert's
    assert ("p", "title", "test text: test.jsonl") in page.attributes
    said = "Bars: the share of each domain’s tokens that goes to the expert"
    assert page.text.count(said) == 1
    assert page.text.count("evaluated on most domains") == 1  # not on every card
    assert page.text.index("Experts and base models") < page.text.index(said) < page.text.index(" code@1 ")
    assert page.links.count(f"/compositions/{second}") == 1
    assert "Made lately" not in narrowed.text
    assert "Health" not in narrowed.text


def test_what_an_expert_gets_is_from_the_best_evaluation_with_it(filled: Registry) -> None:
    names = {"poor": Recipe(router="ridge"), "good": Recipe(), "late": Recipe(top_k=2)}
    averages = {"poor": 70.0, "good": 90.0, "late": 80.0}
    digests = {}
    for name, recipe in names.items():
        digests[name] = recorded(filled, filled.plan(["code", "math"], recipe), f"/somewhere/{name}")
        found = evaluated(name)
        found["figures"] = found["figures"] | {"average": averages[name]}
        found["figures"]["routing"] = {"code": {"code": [averages[name] / 100], "math": [0.0]}}
        filled.catalog.record_evaluation(digests[name], "1" * 64, found)
    with served(filled) as pages:
        text = pages.read().text
        code = text[text.index(" code@1 ") : text.index(" german@1 ")]
        assert "Tokens that good sends to it, by domain: code 90 %" in code
        found["figures"] = found["figures"] | {"average": 85.0}  # the latest one is what all pages show
        filled.catalog.record_evaluation(digests["good"], "2" * 64, found)
        assert "Tokens that good sends to it, by domain: code 80 %" in pages.read().text


@pytest.mark.check
def test_home_says_what_of_opted_out_experts_is_left(filled: Registry, tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    digest = composed(filled, tmp_path / "moe", "math", "code")
    composed(filled, tmp_path / "deleted", "math", "law")
    with served(filled) as pages:
        page = pages.read()
        assert "opted-out" not in page.text.partition("Health")[2]
        assert page.text.index("Health") > page.text.index("Made lately")
        filled.opt_out("math")
        page = pages.read()
        assert page.text.index("Health") < page.text.index("Experts and base models")  # first, at every width
        assert page.links.index(f"/compositions/{digest}") < page.links.index("/versions/code@1")
        health = page.text.partition("Health")[2]
        assert "1 opted-out version not purged, still stored: math@1 reg opt-out math@1 --purge" in health
        assert (
            f"1 composed folder may still contain opted-out experts: moe math@1 (opted out) {tmp_path / 'moe'} "
            in health
        )
        filled.opt_out("math", purge=True)
        health = pages.read().text.partition("Health")[2]
        assert "not purged" not in health
        assert f"experts: moe math@1 (opted out) {tmp_path / 'moe'} " in health
        (tmp_path / "moe").rmdir()
        assert "may still contain" not in pages.read().text


@pytest.mark.check
def test_home_counts_the_folders_that_it_does_not_name(filled: Registry, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"copy-{number}").mkdir()
        composed(filled, tmp_path / f"copy-{number}", "math", "code")
    filled.opt_out("math", purge=True)
    with served(filled) as pages:
        page = pages.read()
    health = page.text.partition("Health")[2].partition("Experts and base models")[0]
    assert "5 composed folders may still contain" in health
    assert health.count("math@1 (opted out)") == 3
    assert "and 2 more folders: all compositions with an opted-out member" in health
    assert "/compositions?gone=1" in page.links


def test_home_says_that_the_log_was_changed(filled: Registry) -> None:
    with served(filled) as pages:
        text = pages.read().text
        assert "the log is intact: 6 events" in text
        assert schema.HEAD not in text
        assert "Bars:" not in text  # before an evaluation
    with filled.catalog.engine.execution_options(writing=True).begin() as connection:
        connection.execute(update(Event).where(Event.id == 3).values(action="nothing"))
    with served(filled) as pages:
        page = pages.read().text
    assert "Attention: the log was changed or is incomplete at event 3 (nothing" in page
    assert "reg verify" in page


@pytest.mark.check(after=1)
@pytest.mark.parametrize(("tokens", "warned"), [(1_999, True), (2_000, False)])
def test_few_tokens_are_warned_of(filled: Registry, tmp_path: Path, tokens: int, warned: bool) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, of_tokens(tokens))
    with served(filled) as pages:
        page = pages.read("compositions", digest).text
    assert f"{2 * tokens:,} tokens of 2 domains" in page
    few = f"Few tokens: {2 * tokens:,} tokens of 2 domains, the smallest of {tokens:,}. Below 2,000 tokens of a domain"
    assert (few in page) == warned
    assert "A score can exceed 100: " in page
    assert ("--windows 96 --data code=FILE --data math=FILE" in page) == warned


@pytest.mark.check(after=1)
@pytest.mark.parametrize(("share", "warned"), [(0.12, True), (0.13, False)])
def test_experts_that_are_hardly_used_are_named(filled: Registry, tmp_path: Path, share: float, warned: bool) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    found = of_tokens(9_999)
    found["figures"]["overall_load"] = {"code": 1 - share, "math": share}
    filled.catalog.record_evaluation(digest, "1" * 64, found)
    with served(filled) as pages:
        page = pages.read("compositions", digest).text
    warning = f"math is hardly used: it gets {100 * share:.1f} % of all tokens; its own domain has 50.0 % of the text"
    assert (warning in page) == warned
    assert "code is hardly used" not in page


def test_experts_without_text_of_their_own_are_held_against_an_equal_share(filled: Registry, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    found = of_tokens(9_999)
    found["figures"]["overall_load"] = {"copy-1": 0.97, "copy-2": 0.03}
    filled.catalog.record_evaluation(digest, "1" * 64, found)
    with served(filled) as pages:
        page = pages.read("compositions", digest).text
    assert "copy-2 is hardly used: it gets 3.0 % of all tokens; an equal share is 50.0 %" in page


def of_tokens(tokens: int) -> dict[str, Any]:
    """Return what an evaluation of a number of tokens a domain found."""
    found = evaluated("moe")
    return found | {"data": {name: {"digest": "0" * 64, "label": "x", "tokens": tokens} for name in ("code", "math")}}


@pytest.mark.check
def test_lists_mark_members_that_were_opted_out(filled: Registry, tmp_path: Path) -> None:
    composed(filled, tmp_path / "moe", "math", "code")
    many = ("math", "code", "law", "german", "biomed")
    composed(filled, tmp_path / "many", *many)
    filled.opt_out("math")
    mark = "math@1 (opted out)"
    with served(filled) as pages:
        for page in (pages.read(), pages.read("compositions"), pages.read("versions", "code@1")):
            assert page.text.count(mark) == 2
            assert "code@1 (opted out)" not in page.text
            assert page.attributes.count(("a", "title", "opted out")) == 2
        filled.opt_out("math", purge=True)
        assert pages.read("compositions").text.count(mark) == 2


def test_best_scores_compare_within_the_same_domains_alone(filled: Registry) -> None:
    names = ("one", "low", "high", "other", "three")
    recipes = (Recipe(), Recipe(top_k=2), Recipe(router="ridge"), Recipe(trunk="mean"), Recipe(to="dense"))
    scores = {
        "one": (99.0, {"code": 20_000}),
        "low": (80.0, {"code": 20_000, "math": 20_000}),
        "high": (85.0, {"math": 1_999, "code": 50_000}),
        "other": (98.0, {"code": 20_000, "law": 20_000}),
        "three": (70.0, {"code": 3_000, "law": 3_000, "math": 4_000}),
    }
    for name, recipe in zip(names, recipes, strict=True):
        digest = recorded(filled, filled.plan(["code", "math"], recipe), f"/somewhere/{name}")
        average, tokens = scores[name]
        found = evaluated(name)
        found["data"] = {one: {"digest": "0" * 64, "label": "x", "tokens": count} for one, count in tokens.items()}
        found["figures"] = found["figures"] | {"average": average}
        filled.catalog.record_evaluation(digest, "1" * 64, found)
    with served(filled) as pages:
        page = pages.read()
    best = page.text[page.text.index("Best scores") : page.text.index("Health")]
    order = ["over 3 domains: code, law, math three 70.0", "over 2 domains: code, law other 98.0"]
    order += ["over 2 domains: code, math high 85.0", "low 80.0"]
    places = [best.index(text) for text in order]
    assert places == sorted(places)
    assert "one 99.0" not in best  # three groups
    few = "few tokens"
    rows = best.partition("100 is each")[0]
    assert rows.count(few) == 1
    assert few in rows[rows.index("high 85.0") : rows.index("low 80.0")]
    assert "“few tokens”: below 2,000 tokens of a domain, a difference of a point can be chance" in best
    assert "A score can exceed 100: " in best
    assert "dense model · regmean" in rows


@pytest.mark.check
def test_best_scores_are_on_the_text_that_most_compositions_were_scored_on(filled: Registry) -> None:
    made = {
        name: recorded(filled, filled.plan(["code", "math"], recipe), f"/somewhere/{name}")
        for name, recipe in {"good": Recipe(), "fair": Recipe(top_k=2), "apart": Recipe(router="ridge")}.items()
    }

    def record(name: str, asked: str, average: float, digest: str, *domains: str, tokens: int = 5_000) -> None:
        found = evaluated(name)
        found["data"] = {one: {"digest": digest * 64, "label": "x", "tokens": tokens} for one in domains}
        found["figures"] = found["figures"] | {"average": average}
        filled.catalog.record_evaluation(made[name], asked * 64, found)

    def best() -> str:
        with served(filled) as pages:
            text = pages.read().text
        return text[text.index("Best scores") : text.index("100 is each")]

    record("good", "1", 95.0, "0", "code", "math")
    record("fair", "1", 85.0, "0", "code", "math")
    record("apart", "1", 99.0, "1", "code", "math", tokens=90_000)
    record("good", "2", 70.0, "2", "code", tokens=90_000)  # later, of one domain: the score of two stays
    two = best()
    assert two.index("good 95.0") < two.index("fair 85.0")
    assert "apart" not in two
    assert "1 composition scored on other text of these domains" in two
    assert "over 1 domain" not in best()  # a list of one that stands in another ranks nothing
    record("apart", "2", 90.0, "0", "code", "math")
    two = best()
    assert two.index("good 95.0") < two.index("apart 90.0") < two.index("fair 85.0")
    assert "on other text" not in two


@pytest.mark.check
def test_few_tokens_are_explained_where_they_are_marked(filled: Registry) -> None:
    digest = recorded(filled, filled.plan(["code", "math"]), "/somewhere/moe")
    for asked, tokens, marks in (("1", 1_999, 2), ("2", 2_000, 0)):  # the badge, and what it means
        filled.catalog.record_evaluation(digest, asked * 64, of_tokens(tokens))
        with served(filled) as pages:
            text = pages.read().text
        assert "Best scores" in text
        assert text.count("few tokens") == marks


@pytest.mark.check(after=1)
@pytest.mark.parametrize("members", [("code", "math"), ("code", "law")])
def test_plain_averaging_of_the_same_experts_is_a_bar(filled: Registry, members: tuple[str, str]) -> None:
    digest = recorded(filled, filled.plan(["code", "math"]), "/somewhere/moe")
    average = {"name": "average", "score": dict.fromkeys(members, 71.3), "average": 71.25}
    filled.catalog.record_evaluation(digest, "1" * 64, evaluated("moe") | {"plain_average": average})
    with served(filled) as pages:
        page = pages.read("compositions", digest).text
    assert ("averaged weights 71.3 each domain’s own expert 100" in page) == (members == ("code", "math"))
    assert "this composition 89.6 with perfect routing 92.8" in page


def test_a_composition_of_an_opted_out_expert_says_what_the_report_says(filled: Registry) -> None:
    digest = recorded(filled, filled.plan(["code", "law", "math"], Recipe(trunk="mean")), "/somewhere/moe")
    alone = recorded(filled, filled.plan(["math"]), "/somewhere/alone")
    filled.opt_out("math")
    warning = filled.report(digest).warnings[0]
    assert warning.command == "reg compose --experts code,law --trunk mean --out DIR"
    with served(filled, ("reg", "--home", "a b")) as pages:
        page = pages.read("compositions", digest).text
        assert f"{warning.mend} reg --home 'a b' compose --experts code,law --trunk mean --out DIR" in page
        assert "Delete this composition." in pages.read("compositions", alone).text
