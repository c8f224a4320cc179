"""Proves: the page of a composition shows its recipe, members, scores, audits and report."""

import re

import pytest

from registry import Recipe, Registry
from registry.design import colour_class, expert_colours
from registry.io.display import size
from registry.report.score_words import INTERVAL_MEANS
from registry.ui.wording import compact
from tests.pages import Page, Pages
from tests.registry.ui.examples import composed, record, recorded


@pytest.mark.check
def test_a_composition_shows_recipe_members_and_scores(filled: Registry, pages: Pages, digest: str) -> None:
    assert "It was not evaluated yet" in pages.read("compositions", digest).text
    record(filled, digest)
    page = pages.read("compositions", digest)
    said = ["regmean", "context window", "mixtral", "91.3", "95.5", "89.6", "75.0 %", "60.0 %"]
    for text in (*said, "/else/moe", "missing"):
        assert text in page.text, text
    assert pages.ask(f"/compositions/{digest[:8]}").headers["location"] == f"/compositions/{digest}"
    listed = pages.read("compositions")
    assert f"/compositions/{digest}" in listed.links
    assert "89.6 on 2,468 tokens of 2 domains" in listed.text
    again = next(link for link in page.links if link.startswith("/compose?"))
    assert digest[:12] in Page(pages.ask(again).text).text


def test_a_composition_has_its_size(filled: Registry, pages: Pages) -> None:
    plan, ridge = filled.plan(["math", "code"]), filled.plan(["math", "code"], Recipe(router="ridge"))
    cost = plan.output.routing_cost(plan)
    assert cost is not None
    said = f"{compact(plan.parameters)} parameters, {compact(cost.parameters)} of them for context routing; "
    said += f"{compact(plan.active_parameters)} work on each token; {size(plan.nbytes)} on disk."
    assert said in pages.read("compositions", recorded(filled, plan, "moe")).text
    text = pages.read("compositions", recorded(filled, ridge, "ridge")).text
    # of two experts, each token uses both
    assert f"{compact(ridge.parameters)} parameters; {size(ridge.nbytes)} on disk." in text


@pytest.mark.check
def test_a_composition_shows_every_model_that_was_scored(filled: Registry, pages: Pages, digest: str) -> None:
    record(filled, digest, oracle=None)
    table = pages.read("compositions", digest).text.partition("Perplexity of every model on this text")[2]
    # scores of 91.25 and 88 at perplexities of 5 and 6
    assert "this composition 5.00 6.00 89.6 each domain’s own expert 4.56 5.28 100.0" in table
    assert "Averaged weights are better" not in table
    plain = {"perplexity": {"code": 4.75, "math": 5.5}, "score": {"code": 96, "math": 96}, "average": 96}
    single = [
        {"name": "base base@1", "perplexity": {"code": 9.5, "math": 8.25}, "score": {"code": 48.03, "math": 64.05}},
        {"name": "expert code", "perplexity": {"code": 4.5625, "math": 12.125}, "score": {"code": 100, "math": 43.54}},
    ]
    record(filled, digest, asked="2", plain_average=plain, single_models=single)
    text = pages.read("compositions", digest).text
    bars = "this composition 89.6 with perfect routing 92.8 averaged weights 96.0 base model base@1 56.0 each domain’s"
    assert f"{bars} own expert 100" in text
    table = text.partition("Perplexity of every model on this text")[2]
    for row in ("averaged weights 4.75 5.50 96.0", "base model base@1 9.50 8.25 56.0", "expert code 4.56 12.12 71.8"):
        assert row in table, row
    assert "Averaged weights are better: 96.0 % against 89.6 %." in text
    assert "compose --experts code,math --to dense --trunk mean --out DIR" in text
    for path in (f"/compositions/{digest}", "/versions/math@1/comparison", "/compose/preview?e=math&e=code"):
        text = pages.ask(path).text  # no line ends before a percent sign
        assert re.search(r"[0-9](\u00a0|&nbsp;)%", text), path
        assert re.findall(r".{20}[0-9] %", text) == [], path
    others = plain | {"score": {"code": 71, "law": 71}}  # averaged weights of other experts are no bar
    record(filled, digest, asked="2", plain_average=others)
    assert "averaged weights 96.0" not in pages.read("compositions", digest).text


@pytest.mark.check
def test_a_quick_look_does_not_displace_the_score_on_more_text(filled: Registry, pages: Pages, digest: str) -> None:
    record(filled, digest)
    said = "89.6 on 2,468 tokens of 2 domains"
    assert "evaluations" not in pages.read("compositions", digest).text
    record(filled, digest, None, {"code": 9_999}, asked="2", digest="1", figures={"average": 42.0})
    page = pages.read("compositions", digest)
    assert "Score 89.6" in page.text
    chosen = "of 2 evaluations, the one on the most of its own domains and tokens ( all )"
    assert f"2,468 tokens of 2 domains, just now ; {chosen}" in page.text
    assert "42.0 on 9,999 tokens of 1 domain" in page.text  # folded
    for path in (("compositions",), (), ("versions", "math@1")):
        assert said in pages.read(*path).text
    report = filled.report(digest)
    assert report.score_of("composition") == 89.625
    chosen = "2,468 tokens of 2 domains; the latest one has 9,999 tokens of 1 domain"
    assert any(chosen in note for note in report.notes)


@pytest.mark.check
def test_the_log_names_what_was_scored_as_it_was_called_then(filled: Registry, pages: Pages, digest: str) -> None:
    record(filled, digest)
    assert composed(filled, "/else/second", "math", "code") == digest
    record(filled, digest, None, 100, asked="2")
    text, scored = pages.read("log").text, "windows a domain; score 89.6"
    order = [text.index(said) for said in ("evaluate second", "compose second", "evaluate moe", "compose moe")]
    assert order == sorted(order)  # newest first
    assert f"on code, math; up to 4 {scored}" in text
    assert f"on code, math; 4 {scored}" in text
    assert f"on code, math; 4 {scored}" in pages.read("compositions", digest).text
    filled.opt_out("math", purge=True)  # which deletes the scores
    assert "89.6" not in pages.read("log").text


@pytest.mark.check
def test_a_score_has_its_interval(filled: Registry, pages: Pages, digest: str) -> None:
    record(filled, digest)
    assert "95 % interval" not in pages.read("compositions", digest).text
    own = {"interval": {"code": [90.06, 92.04]}, "average_interval": [88.25, 90.5]}
    record(filled, digest, figures=own)
    text = pages.read("compositions", digest).text
    assert "89.6 88.3 to 90.5 95 % interval" in text
    assert "code 91.3 90.1 to 92.0 95.5" in text
    assert "math 88.0 – 90.0" in text
    assert "Average 89.6 88.3 to 90.5 92.8" in text
    assert " ".join(INTERVAL_MEANS.split()) in text
    averaged = {"score": {"code": 80, "math": 81}, "average": 80.5, "average_interval": [79.0, 81.5]}
    record(filled, digest, figures=own, plain_average=averaged)
    said = "The 95 % intervals of this one and of averaged weights, 88.3 to 90.5 and 79.0 to 81.5, do not overlap"
    assert said in pages.read("compositions", digest).text


def test_a_composition_shows_its_audits(filled: Registry, pages: Pages, digest: str) -> None:
    assert "Extraction" not in pages.read("compositions", digest).text
    audit = {
        "data": {"digest": "0" * 64, "label": "<b>law.jsonl", "documents": 1234},
        "experts": {},
        "settings": {"prefix": 8, "continued": 4},
        "extraction": {"extracted": 77, "rate": 0.0624, "similarity": 0.3125, "most": 0.875},
    }
    filled.catalog.record_evaluation(digest, "2" * 64, audit)
    page = pages.read("compositions", digest)
    (stored,) = filled.audits(filled.compositions(digest)[0])
    row = page.text[page.text.index("<b>law.jsonl") :]
    found = [row.index(text) for text in ("1,234", "77", "6.2 %", "0.312", "0.875", stored.evaluated_at[:10])]
    assert found == sorted(found)
    assert "It was not evaluated yet" in page.text  # an audit is no score


@pytest.mark.check
def test_scores_that_a_purge_deleted_are_not_said_to_be_missing(filled: Registry, pages: Pages, digest: str) -> None:
    pytest.importorskip("vl_convert")
    record(filled, digest)
    filled.opt_out("math", purge=True)
    text, listed = pages.read("compositions", digest).text, pages.read("compositions").text
    assert "No score is stored. A purge of a member deletes the scores of what was made from it" in text
    assert "reg --home" not in text.partition("No score is stored.")[2].partition("It cannot be made again")[0]
    report = Page(pages.ask(f"/compositions/{digest}/report").text).text
    assert "No score is stored, and none will be: math@1 was opted out." in report
    assert "no score stored" in listed
    assert "scores deleted math@1" in pages.read("log").text
    for page in (text, report, listed):
        assert "ot evaluated" not in page


def test_a_base_model_is_no_member_and_grey_as_is_an_opted_out_expert(filled: Registry, pages: Pages) -> None:
    """One rule gives dots their colours on pages and in reports."""
    pytest.importorskip("vl_convert")
    digest = composed(filled, "moe", "math", "code", recipe=Recipe(trunk="ties"))
    filled.opt_out("math")
    own = colour_class("code", expert_colours(["code"], filled.catalog.names(kind="expert")))
    page, report = (pages.ask(f"/compositions/{digest}{place}").text for place in ("", "/report"))
    members = page.partition('aria-label="Table of the members"')[2].partition("</table>")[0]
    assert ("math@1" in members, "code@1" in members, "base@1" in members) == (True, True, False)
    assert "Base model, no member: base@1" in Page(page).text
    for text in (page, report):
        assert f'class="dot {own}"' in text or f'class="ref {own}"' in text
        assert re.search(r'class="(?:dot|chip|chip gone|ref)[^"]* neutral(?: gone)?"', text)
        assert set(re.findall(r'class="(?:dot|chip|ref) (e[0-9]+)[ "]', text)) <= {own}
    card = r'<li class="card expert ([a-z0-9]+)[^"]*">.*?<bdi>([a-z]+)@1</bdi>'
    listed = {name: colour for colour, name in re.findall(card, pages.ask("/?all=1").text, re.DOTALL)}
    assert (listed["math"], listed["base"], listed["code"]) == ("neutral", "neutral", own)
    assert '<header class="head neutral">' in pages.ask("/versions/math@1").text
    composer = pages.ask("/compose?to=ensemble").text
    assert '<span class="dot neutral" aria-hidden="true"></span><span class="what"><bdi>base@1' in composer
