"""Proves: compositions stand side by side, and only what was measured on the same text compares them."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.io.display import size
from registry.ui.jobs import Job
from registry.ui.site import url
from registry.ui.wording import compact
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import composed, record, shown, values

PAIR = {"code": 80.0, "math": 90.0}
"""Scores of one composition on two domains."""


def recorded_in(registry: Registry, folder: Path) -> dict[str, str]:
    """Record three compositions without scores: name → digest."""
    return {
        "zebra": composed(registry, folder / "zebra", "code", "math"),
        "apple": composed(registry, folder / "apple", "code", "math", recipe=Recipe(router="ridge")),
        "Mango": composed(registry, folder / "Mango", "code", "math", "law", recipe=Recipe(to="ensemble")),
    }


@pytest.fixture
def made(filled: Registry) -> dict[str, str]:
    return recorded_in(filled, Path("/somewhere"))


def compare(pages: Pages, made: dict[str, str], *names: str, status: int = 200) -> Page:
    return pages.read("compositions", "compare", c=[made[name] for name in names], status=status)


def test_compositions_are_ticked_on_the_list_or_reached_from_one(pages: Pages, made: dict[str, str]) -> None:
    page = pages.read("compositions")
    assert ("/compositions/compare" in values(page, "action", "form"), "c" in values(page, "name")) == (True, True)
    assert {digest[:12] for digest in made.values()} <= set(values(page))
    short = pages.read("compositions", "compare", c=values(page))
    assert "3 compositions side by side" in short.text
    for digest in made.values():
        assert f"/compositions/{digest}" in short.links
    zebra, apple = made["zebra"][:12], made["apple"][:12]
    assert f"/compositions/compare?c={apple}&c={zebra}" in pages.read("compositions", made["apple"]).links
    assert f"/compositions/compare?c={zebra}" in pages.read("compositions", made["zebra"]).links


def test_the_better_one_on_the_same_text_is_said(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    averaged = {"score": {"code": 70.0, "math": 80.0}, "average": 75.0}
    record(filled, made["zebra"], PAIR, 5000, plain_average=averaged)
    record(filled, made["apple"], {"code": 95.0, "math": 89.0}, 5000)
    text = compare(pages, made, "zebra", "apple").text
    for said in (
        "apple is better on the same text: 92.0 against 85.0, mean of code and math; on math the other is better.",
        "Unlike zebra : router ridge",
        "code 80.0 best 95.0 math best 90.0 89.0 Mean 85.0 best 92.0 averaged weights of its experts 75.0 –",
        "code 6.25 best 5.26",
        "Routing accuracy share of a domain’s tokens that go to its expert code 75.0 % 75.0 %",
        "Tokens scored and the name of their file code test.jsonl 5,000 5,000",
    ):
        assert said in text
    assert "500 500" in text.partition("Parameters per token")[2]
    for absent in ("reg evaluate", "few", "On other text"):
        assert absent not in text


@pytest.mark.check
def test_intervals_say_what_may_be_chance(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    for half, unsure in ((2.0, False), (9.0, True)):
        for name, scores in (("zebra", PAIR), ("apple", {"code": 95.0, "math": 89.0})):
            ends = {domain: [score - half, score + half] for domain, score in scores.items()}
            record(filled, made[name], scores, 5000, figures={"interval": ends})
        text = compare(pages, made, "zebra", "apple").text
        width = half / math.sqrt(2)  # of the mean of two domains
        apple, zebra = (f"{mean - width:.1f} to {mean + width:.1f}" for mean in (92.0, 85.0))
        meant = "overlap: the difference may be" if unsure else "do not overlap: the difference is more"
        assert f"The 95 % intervals, {apple} and {zebra}, {meant}" in text
        assert f"apple is {'ahead' if unsure else 'better'} on the same text: 92.0 against 85.0" in text
        # a perplexity is as sure as the score that is made of it
        assert ("code 6.25 ahead, maybe by chance 5.26" in text) == unsure
        assert ("code 6.25 best 5.26" in text) != unsure


@pytest.mark.check
def test_the_same_windows_decide_what_is_chance(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    own = [200.0 + at for at in range(20)]
    for noise, sure in ((0.001, True), (0.5, False)):
        for name, behind, shift in (("zebra", 11.0, noise), ("apple", 10.0, 0.0)):
            losses = [each + behind + 10 * shift * (-1) ** at for at, each in enumerate(own)]
            scores, ends = {"code": 100 * math.exp(-behind / 100)}, {"interval": {"code": [80.0, 99.0]}}
            windows = {"code": {"tokens": [100] * 20, "composition": losses, "own": own}}
            record(filled, made[name], scores, 5000, figures=ends, losses=windows)
        text = compare(pages, made, "zebra", "apple").text
        assert "On the same windows apple is ahead of zebra by " in text
        assert f" points (95 % interval): this {'is more than' if sure else 'may be'} chance." in text
        assert f"apple is {'better' if sure else 'ahead'} on the same text: 90.5 against 89.6, on code" in text
        assert ("ahead, maybe by chance 90.5" in text) != sure
        assert ("best 90.5" in text) == sure
        assert "overlap:" not in text


def test_scores_of_domains_have_their_intervals(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["apple"], PAIR, 5000)
    assert "interval" not in compare(pages, made, "zebra", "apple").text
    ends = {"interval": {"code": [78.5, 81.25], "math": [89.0, 91.0], "law": [40.0, 60.0]}}
    record(filled, made["zebra"], PAIR | {"law": 50.0}, 5000, figures=ends)
    text = compare(pages, made, "zebra", "apple").text
    assert "100 is each domain’s own expert; with the 95 % interval code 80.0 78.5 to 81.3 80.0" in text
    assert "math 90.0 89.0 to 91.0 90.0 Mean 85.0 84.1 to 85.9 85.0" in text
    assert "The 95 % interval says how far a score could move on other text" in text
    assert "zebra law 50.0 40.0 to 60.0 10.00" in text.partition("On other text")[2]
    # a mean has the interval that the page of its composition has
    record(filled, made["zebra"], PAIR, 5000, asked="2", figures=ends | {"average_interval": [83.25, 86.75]})
    assert "Mean 85.0 83.3 to 86.8 85.0" in compare(pages, made, "zebra", "apple").text


@pytest.mark.check
def test_compositions_have_their_sizes(
    filled: Registry, pages: Pages, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an array was read")

    def sizes() -> str:
        return compare(pages, made, "zebra", "Mango").text.partition("Size")[2].partition("reg ui")[0]

    zebra, mango = filled.plan(["code", "math"]), filled.plan(["code", "math", "law"], Recipe(to="ensemble"))
    for name in ("read", "sample"):
        monkeypatch.setattr(type(filled.arrays), name, refuse)
    text, cost = sizes(), zebra.output.routing_cost(zebra)
    assert cost is not None
    assert f"Parameters {compact(zebra.parameters)} {compact(mango.parameters)}" in text
    assert f"of them for context routing {compact(cost.parameters)} –" in text
    assert f"per token {compact(zebra.active_parameters)} {compact(mango.active_parameters)}" in text
    assert f"On disk {size(zebra.nbytes)} {size(mango.nbytes)}" in text
    filled.opt_out("law")
    assert f"On disk {size(zebra.nbytes)} –" in sizes()  # the other cannot be planned any more
    filled.opt_out("code")
    assert "On disk" not in sizes()


@pytest.mark.check
def test_other_text_and_other_settings_stand_apart(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["zebra"], PAIR, 5000)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"digest": "1"}, "unlike zebra: other text, another number of windows, or another tokenizer"),
        ({"digest": "1", "settings": {"seq_len": 64}}, "unlike zebra: windows of 64 tokens, not 32"),
        ({"settings": {"dtype": "bfloat16"}}, "unlike zebra: computed in bfloat16, not float32"),
    ]
    for change, why in changes:
        record(filled, made["apple"], {"code": 95.0, "law": 50.0}, 5000, **change)
        page = compare(pages, made, "zebra", "apple")
        assert "They do not compare yet: no two were evaluated on the same text with the same settings." in page.text
        assert "reg evaluate DIR DIR --data code=FILE --data math=FILE --data law=FILE" in page.text
        assert "best" not in page.text.partition("On other text")[2]
        assert f"apple code 95.0 5.26 75.0 % 5,000 {why}" in page.text
        assert "no other was evaluated on this domain" in page.text
    record(filled, made["apple"], {"code": 95.0, "math": 60.0}, 5000, asked="2")
    assert "zebra is better on the same text: 85.0 against 77.5" in compare(pages, made, "zebra", "apple").text


def test_few_tokens_and_missing_scores_get_the_command(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["zebra"], {"code": 80.0}, 1999)
    record(filled, made["apple"], {"code": 80.04}, 1999)
    text = compare(pages, made, "zebra", "apple", "Mango").text
    assert "zebra and apple are equal on the same text: 80.0, on code." in text
    assert "Mango has no scores yet." in text
    assert "few tokens" in text
    record(filled, made["Mango"], {"law": 80.0}, 5000)
    assert "Mango has no scores on all of this text." in compare(pages, made, "zebra", "apple", "Mango").text
    assert "with law@1 added; an ensemble made just now" in text  # an ensemble has no router
    assert "reg evaluate DIR DIR DIR --windows 96 --data code=FILE --data math=FILE --data law=FILE" in text


@pytest.mark.check
def test_the_form_that_evaluates_what_lacks_is_linked(filled: Registry, tmp_path: Path) -> None:
    made = recorded_in(filled, tmp_path)
    for name in made:
        (tmp_path / name).mkdir()
    job = ("evaluate", str(tmp_path / "apple"), "--data", "code=a b.txt", "--windows", "4")

    def read(*names: str) -> Page:
        query = {"c": [made[name] for name in names]}
        others = pages.ask(url("compositions", "compare", **query)).text
        assert "#evaluate" not in others
        assert "a b.txt" not in others  # only who may start jobs learns of their files
        return shown(pages, "compositions", "compare", **query)

    def linked(page: Page) -> list[str]:
        forms = [link.partition("?")[0] for link in page.links if link.endswith("#evaluate")]
        return [name for name, digest in made.items() if f"/compositions/{digest}" in forms]

    with served(filled, may_write=True, program=(sys.executable, "-c", "")) as pages:
        assert linked(read("zebra", "apple")) == ["zebra", "apple"]  # neither has a score
        for name in ("zebra", "apple"):
            record(filled, made[name], {"code": 80.0}, 1999, asked="3", digest="2")
        page = read("zebra", "apple")
        said = "more of the same text, evaluate zebra, apple on the same files, with 96 windows a domain:"
        assert said in page.text
        both = [made["zebra"][:12], made["apple"][:12]]
        assert f"{url('compositions', made['zebra'], c=both, windows='96')}#evaluate" in page.links
        record(filled, made["zebra"], PAIR, 5000)
        record(filled, made["apple"], {"code": 95.0}, 5000, asked="2")
        page = read("zebra", "apple")  # they compare, and by the larger text
        assert linked(page) == []
        assert "few tokens" not in page.text
        record(filled, made["apple"], {"code": 95.0}, 5000, asked="2", digest="1")
        record(filled, made["apple"], {"code": 80.0}, 1999, asked="3", digest="3")
        assert pages.jobs is not None
        pages.jobs.add(Job("Evaluate apple", job, "/", ""))
        page = read("zebra", "apple")
        assert linked(page) == ["zebra"]
        assert "evaluate zebra on the same files as apple, with 4 windows a domain: Evaluate zebra" in page.text
        assert f"reg evaluate {tmp_path}/zebra {tmp_path}/apple --data 'code=a b.txt' --data math=FILE" in page.text
        record(filled, made["apple"], {"code": 95.0}, 5000, asked="2")
        page = read("zebra", "apple", "Mango")
        assert linked(page) == ["Mango"]
        assert "evaluate Mango on the same files as apple" in page.text
        filled.opt_out("law")
        assert linked(read("zebra", "Mango")) == []


@pytest.mark.check
def test_what_the_better_one_lacks_can_be_scored_there(filled: Registry, writable: Pages, tmp_path: Path) -> None:
    experts = {"two": ("code", "math"), "three": ("code", "math", "law")}
    made = {name: composed(filled, tmp_path / name, *own) for name, own in experts.items()}
    for name in made:
        (tmp_path / name).mkdir()
    record(filled, made["two"], {"code": 90.0, "math": 95.0}, 5000)
    record(filled, made["three"], PAIR, 5000)
    windows: dict[str, Any] = {"asked": "2", "settings": {"windows": 24}}

    def read() -> Page:
        return shown(writable, "compositions", "compare", c=list(made.values()))

    assert "two has no expert of law. On law, none was scored." in read().text
    assert "evaluate two, three on the same files:" in read().text
    record(filled, made["three"], PAIR | {"law": 50.0}, 5000, **windows)
    page = read()
    assert "two has no expert of law. On law, three was scored." in page.text
    assert "evaluate two on the same files as three, with 24 windows a domain: Evaluate two" in page.text
    form = next(link for link in page.links if link.endswith("#evaluate"))
    typed = values(Page(writable.ask(form.partition("#")[0], headers=writable.cookie).text))
    assert {"code", "math", "law", "24"} <= set(typed)  # law is not among its members
    assert "law" not in values(shown(writable, "compositions", made["two"]))
    record(filled, made["two"], PAIR | {"law": 50.0}, 5000, **windows)
    assert "two has no expert of law." in read().text
    assert "On law," not in read().text


def test_scores_against_other_versions_do_not_compare(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["zebra"], {"code": 80.0}, 5000, experts={"code": "e" * 64})
    record(filled, made["apple"], {"code": 90.0}, 5000, experts={"code": "f" * 64})
    text = compare(pages, made, "zebra", "apple").text
    assert "apple is better on the same text: its perplexity is the lowest on code. No scores compare." in text
    assert "The scores on code do not compare: they are relative to different versions of its own expert." in text
    assert "90.0" not in text


def test_an_opted_out_member_is_marked_and_not_evaluated(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    filled.opt_out("law")
    text = compare(pages, made, "zebra", "apple", "Mango").text
    assert "Mango contains law@1, which was opted out" in text
    assert "law@1 (opted out)" in text
    assert "reg evaluate DIR DIR --data code=FILE --data math=FILE FILE is" in text.replace(" Copy", "")
    assert "They do not compare yet: " in text
    text = compare(pages, made, "zebra", "Mango").text
    assert "reg evaluate" not in text
    assert "They do not compare: no two were evaluated on the same text with the same settings. Mango" in text


def test_addresses_that_name_nothing_or_too_much(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    unknown = pages.read("compositions", "compare", c=["f" * 64, "<b>"], status=404)
    assert f"There is no composition '{'f' * 64}'" in unknown.text
    assert "no composition is chosen" in pages.read("compositions", "compare", status=400).text.lower()
    mixed = pages.read("compositions", "compare", c=[made["zebra"], "<b>", made["apple"], made["zebra"][:12]]).text
    assert "There is no composition <b>; it is left out." in mixed
    assert "2 compositions side by side" in mixed
    alone = compare(pages, made, "zebra")
    assert "Compare zebra" in alone.text
    offered = values(alone, tag="option")
    assert (made["apple"][:12] in offered, made["zebra"][:12] in offered) == (True, False)
    for number in (2, 3):
        recipe = Recipe(top_k=number)
        made[f"k{number}"] = composed(filled, "/else/zebra", "code", "math", "law", recipe=recipe)
    page = compare(pages, made, "zebra", "apple", "Mango", "k2")
    assert "4 compositions side by side" in page.text
    assert f"zebra ({made['k2'][:12]})" in page.text
    assert "select" not in {tag for tag, _, _ in page.attributes}
    left = [link for link in page.links if link.startswith("/compositions/compare")]
    assert [link.count("c=") for link in left] == [3] * 4
    assert "5 compositions are chosen" in compare(pages, made, *made, status=400).text
