"""Proves: the page of a composition shows its recipe, members, scores, audits and report."""

import re
from pathlib import Path

import pytest

from registry import Recipe, Registry
from registry.composition import context_cost
from registry.composition.compose import used_versions
from registry.design import colour_class, expert_colours
from registry.report.verdict import INTERVAL_MEANS
from registry.ui.wording import compact, size
from tests.pages import Page, Pages
from tests.registry.ui.examples import composed, evaluation
from tests.registry.ui.test_every_kind import evaluated


@pytest.mark.check
def test_a_composition_shows_recipe_members_and_scores(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    assert "It was not evaluated yet" in pages.read("compositions", digest).text
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    page = pages.read("compositions", digest)
    for text in (
        "regmean",
        "mixtral",
        "91.3",
        "95.5",
        "89.6",
        "75.0 %",
        "60.0 %",
        str(tmp_path / "moe"),
        "missing",
    ):
        assert text in page.text, text
    assert pages.ask(f"/compositions/{digest[:8]}").headers["location"] == f"/compositions/{digest}"
    listed = pages.read("compositions")
    assert f"/compositions/{digest}" in listed.links
    assert "moe" in listed.text
    assert "89.6 on 2,468 tokens of 2 domains" in listed.text
    assert "1–1 of 1" in pages.read("compositions", of="math").text
    assert "No composition matches" in pages.read("compositions", of="law").text
    again = next(link for link in page.links if link.startswith("/compose?"))
    assert digest[:12] in Page(pages.ask(again).text).text


@pytest.mark.check
def test_a_composition_shows_every_model_that_was_scored(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    table = pages.read("compositions", digest).text.partition("Perplexity of every model on this text")[2]
    # scores of 91.25 and 88 at perplexities of 5 and 6
    assert "this composition 5.00 6.00 89.6 each domain’s own expert 4.56 5.28 100.0" in table
    assert "Averaged weights are better" not in table
    found = evaluation() | {
        "plain_average": {"perplexity": {"code": 4.75, "math": 5.5}, "score": {"code": 96, "math": 96}, "average": 96},
        "single_models": [
            {"name": "base base@1", "perplexity": {"code": 9.5, "math": 8.25}, "score": {}, "average": 56.04},
            {"name": "expert code", "perplexity": {"code": 4.5625, "math": 12.125}, "score": {}, "average": 71.77},
        ],
    }  # fmt: skip
    filled.catalog.record_evaluation(digest, "2" * 64, found)
    text = pages.read("compositions", digest).text
    table = text.partition("Perplexity of every model on this text")[2]
    for row in ("averaged weights 4.75 5.50 96.0", "base model base@1 9.50 8.25 56.0", "expert code 4.56 12.12 71.8"):
        assert row in table, row
    assert "Averaged weights are better: 96.0 % against 89.6 %." in text
    assert "compose --experts code,math --to dense --trunk mean --out DIR" in text


@pytest.mark.check
def test_a_quick_look_does_not_displace_the_score_on_more_text(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluated("moe"))
    said = "89.6 on 2,468 tokens of 2 domains"
    assert "evaluations" not in pages.read("compositions", digest).text
    look = evaluated("moe")
    look["data"] = {"code": look["data"]["code"] | {"digest": "1" * 64, "tokens": 9_999}}
    look["figures"] = look["figures"] | {"average": 42.0}
    filled.catalog.record_evaluation(digest, "2" * 64, look)
    page = pages.read("compositions", digest)
    assert "Score 89.6" in page.text
    chosen = "of 2 evaluations, the one on the most of its own domains and tokens ( all )"
    assert f"2,468 tokens of 2 domains, just now ; {chosen}" in page.text
    assert "42.0 on 9,999 tokens of 1 domain" in page.text  # folded
    assert said in pages.read("compositions").text
    assert said in pages.read().text
    assert said in pages.read("versions", "math@1").text
    report = filled.report(digest)
    assert report.score_of("composition") == 89.625
    chosen = "2,468 tokens of 2 domains; the latest one has 9,999 tokens of 1 domain"
    assert any(chosen in note for note in report.notes)


def test_the_log_keeps_the_name_of_each_folder(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "first", "math", "code")
    assert composed(filled, tmp_path / "second", "math", "code") == digest
    text = pages.read("log").text
    assert "compose second" in text
    assert "compose first" in text


def test_an_evaluation_in_the_log_has_the_name_that_its_composition_had_then(
    filled: Registry, pages: Pages, tmp_path: Path
) -> None:
    digest = composed(filled, tmp_path / "first", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    assert composed(filled, tmp_path / "second", "math", "code") == digest
    filled.catalog.record_evaluation(digest, "2" * 64, evaluation())
    text = pages.read("log").text
    order = [text.index(said) for said in ("evaluate second", "compose second", "evaluate first", "compose first")]
    assert order == sorted(order)  # newest first


def test_a_composition_has_its_size(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    plan = filled.plan(["math", "code"])
    cost = context_cost(plan)
    assert cost is not None
    said = f"{compact(plan.parameters)} parameters, {compact(cost.parameters)} of them for context routing; "
    said += f"{compact(plan.active_parameters)} work on each token; {size(plan.nbytes)} on disk."
    assert said in pages.read("compositions", digest).text
    ridge = Recipe(router="ridge")
    plan = filled.plan(["math", "code"], ridge)
    filled.catalog.record_composition(plan.digest, plan.document, used_versions(plan), str(tmp_path / "ridge"))
    text = pages.read("compositions", plan.digest).text  # of two experts, each token uses both
    assert f"{compact(plan.parameters)} parameters; {size(plan.nbytes)} on disk." in text


@pytest.mark.check
def test_the_log_says_what_an_evaluation_scored(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    said = "on code, math; 4 windows a domain; score 89.6"
    shorter = {name: {"digest": "0" * 64, "label": "x", "tokens": 100} for name in ("code", "math")}
    filled.catalog.record_evaluation(digest, "2" * 64, evaluation() | {"data": shorter})
    assert "on code, math; up to 4 windows a domain; score 89.6" in pages.read("log").text
    assert said in pages.read("log").text
    assert said in pages.read("compositions", digest).text
    filled.opt_out("math", purge=True)  # which deletes the scores
    assert "89.6" not in pages.read("log").text


@pytest.mark.check
def test_a_score_has_its_interval(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    found = evaluation()
    filled.catalog.record_evaluation(digest, "1" * 64, found)
    assert "95 % interval" not in pages.read("compositions", digest).text
    own = {"interval": {"code": [90.06, 92.04]}, "average_interval": [88.25, 90.5]}
    filled.catalog.record_evaluation(digest, "1" * 64, found | {"figures": found["figures"] | own})
    text = pages.read("compositions", digest).text
    assert "89.6 88.3 to 90.5 95 % interval" in text
    assert "code 91.3 90.1 to 92.0 95.5" in text
    assert "math 88.0 – 90.0" in text
    assert "Average 89.6 88.3 to 90.5 92.8" in text
    assert " ".join(INTERVAL_MEANS.split()) in text
    assert "averaged weights," not in text
    averaged = {"score": {"code": 80, "math": 81}, "average": 80.5, "average_interval": [79.0, 81.5]}
    filled.catalog.record_evaluation(
        digest, "1" * 64, found | {"figures": found["figures"] | own, "plain_average": averaged}
    )
    assert (
        "The 95 % intervals of this one and of averaged weights, 88.3 to 90.5 and 79.0 to 81.5, do not overlap: "
        "the difference is more than chance."
    ) in pages.read("compositions", digest).text


@pytest.mark.check
def test_no_line_of_a_page_ends_before_a_percent_sign(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    averaged = {"perplexity": {"code": 4.75, "math": 5.5}, "score": {"code": 96, "math": 96}, "average": 96}
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation() | {"plain_average": averaged})
    for path in (f"/compositions/{digest}", "/versions/math@1/comparison", "/compose/preview?e=math&e=code"):
        text = pages.ask(path).text
        assert re.search(r"[0-9](\u00a0|&nbsp;)%", text), path
        assert re.findall(r".{20}[0-9] %", text) == [], path


def test_a_composition_shows_its_audits(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
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
    found = [row.index(text) for text in ("<b>law.jsonl", "1,234", "77", "6.2 %", "0.312", "0.875")]
    assert found == sorted(found)
    assert stored.evaluated_at[:10] in row
    assert "It was not evaluated yet" in page.text  # an audit is no score


@pytest.mark.check
def test_scores_that_a_purge_deleted_are_not_said_to_be_missing(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    filled.opt_out("math", purge=True)
    text = pages.read("compositions", digest).text
    assert "No score is stored. A purge of a member deletes the scores of what was made from it" in text
    assert "reg --home" not in text.partition("No score is stored.")[2].partition("It cannot be made again")[0]
    report = Page(pages.ask(f"/compositions/{digest}/report").text).text
    assert "No score is stored, and none will be: math@1 was opted out." in report
    assert "no score stored" in pages.read("compositions").text
    assert "scores deleted math@1" in pages.read("log").text
    for page in (text, report, pages.read("compositions").text):
        assert "ot evaluated" not in page


def test_copies_of_a_base_model_are_counted(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    plan = filled.plan([], from_base=12)
    filled.catalog.record_composition(plan.digest, plan.document, used_versions(plan), str(tmp_path))
    page = pages.read("compositions", plan.digest)
    assert "12 copies on base@1" in page.text
    assert "A sparse mixture of 12 copies of the base model’s MLPs; 2 experts per token" in page.text
    assert "Compose again" not in page.text
    assert "12 copies on base@1" in pages.read("compositions").text


def test_a_composition_has_its_report(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    digest = composed(filled, tmp_path / "<b>moe", "math", "code")
    first, second = (pages.ask(f"/compositions/{digest}/report") for _ in range(2))
    assert first.status == 200, first.text
    assert first.text == second.text
    policy = first.headers["content-security-policy"]
    assert "script-src 'sha256-" in policy
    assert "script-src 'unsafe" not in policy
    assert "sandbox allow-scripts" in policy
    assert digest[:16] in first.text
    assert pages.ask(f"/compositions/{digest[:9]}/report").headers["location"] == f"/compositions/{digest}/report"
    assert pages.ask("/compositions/abcdef/report").status == 404


def test_the_base_model_of_a_trunk_is_no_member(filled: Registry, pages: Pages) -> None:
    plan = filled.plan(["math", "code"], Recipe(trunk="ties"))
    filled.catalog.record_composition(plan.digest, plan.document, used_versions(plan), "moe")
    text = pages.ask(f"/compositions/{plan.digest}").text
    members = text.partition('aria-label="Table of the members"')[2].partition("</table>")[0]
    assert ("math@1" in members, "code@1" in members, "base@1" in members) == (True, True, False)
    assert "Base model, no member: base@1" in Page(text).text


@pytest.mark.check(after=1)
@pytest.mark.parametrize("place", ["", "/report"])
def test_one_rule_gives_dots_their_colours_on_pages_and_in_reports(filled: Registry, pages: Pages, place: str) -> None:
    pytest.importorskip("vl_convert")
    plan = filled.plan(["math", "code"], Recipe(trunk="ties"))
    filled.catalog.record_composition(plan.digest, plan.document, used_versions(plan), "moe")
    filled.opt_out("math")
    own = colour_class("code", expert_colours(["code"], filled.catalog.names(kind="expert")))
    text = pages.ask(f"/compositions/{plan.digest}{place}").text
    assert f'class="dot {own}"' in text or f'class="ref {own}"' in text
    grey = set(re.findall(r'class="(?:dot|chip|chip gone|ref)[^"]* neutral(?: gone)?"', text))
    assert grey
    assert set(re.findall(r'class="(?:dot|chip|ref) (e[0-9]+)[ "]', text)) <= {own}


def test_the_base_model_and_an_opted_out_expert_are_grey_on_every_list(filled: Registry, pages: Pages) -> None:
    filled.opt_out("math")
    text = pages.ask("/?all=1").text
    found = {name: colour for colour, name in re.findall(
        r'<li class="card expert ([a-z0-9]+)[^"]*">.*?<bdi>([a-z]+)@1</bdi>', text, re.DOTALL)}  # fmt: skip
    assert (found["math"], found["base"]) == ("neutral", "neutral")
    assert re.fullmatch("e[0-9]+", found["code"])
    page = pages.ask("/versions/math@1").text
    assert '<header class="head neutral">' in page
    composer = pages.ask("/compose?to=ensemble").text
    assert '<span class="dot neutral" aria-hidden="true"></span><span class="what"><bdi>base@1' in composer
