"""Proves: compositions stand side by side, and only what was measured on the same text compares them."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import EnsembleRecipe, Recipe, Registry
from registry.composition import context_cost
from registry.ui.beside.same_text import Measured, found_in, mean_of, readers, shared_rows, verdict
from registry.ui.scores import Text
from registry.ui.site import url
from registry.ui.wording import compact, size
from tests.pages import Page, Pages, served
from tests.registry.ui.test_composition_list import scored
from tests.registry.ui.test_every_kind import recorded


@pytest.fixture
def made(filled: Registry) -> dict[str, str]:
    """Three compositions without scores: name → digest."""
    plans = {
        "zebra": filled.plan(["code", "math"]),
        "apple": filled.plan(["code", "math"], Recipe(router="ridge")),
        "Mango": filled.plan(["code", "math", "law"], EnsembleRecipe()),
    }
    return {name: recorded(filled, plan, f"/somewhere/{name}") for name, plan in plans.items()}


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled) as found:
        yield found


def record(registry: Registry, of: str, scores: dict[str, float], asked: str = "1", **changes: Any) -> None:
    """Record an evaluation that gave these scores; `changes` are of its settings, or of every domain's data."""
    found = scored("x", scores)
    found["oracle"] = None
    found["figures"] = found["figures"] | {"perplexity": {name: 500 / score for name, score in scores.items()}}
    found["settings"] = found["settings"] | {key: changes[key] for key in ("seq_len", "dtype") if key in changes}
    data = {key: changes[key] for key in ("digest", "tokens") if key in changes}
    found["data"] = {name: text | data for name, text in found["data"].items()}
    found["experts"] = dict.fromkeys(scores, changes.get("own", "e" * 64))
    registry.catalog.record_evaluation(of, asked * 64, found | changes.get("document", {}))


def compare(pages: Pages, made: dict[str, str], *names: str, status: int = 200) -> Page:
    return pages.read("compositions", "compare", c=[made[name] for name in names], status=status)


def test_compositions_are_ticked_on_the_list(pages: Pages, made: dict[str, str]) -> None:
    page = pages.read("compositions")
    assert ("form", "action", "/compositions/compare") in page.attributes
    assert ("input", "name", "c") in page.attributes
    ticks = [value for tag, name, value in page.attributes if (tag, name) == ("input", "value") and value]
    assert {digest[:12] for digest in made.values()} <= set(ticks)
    short = pages.read("compositions", "compare", c=ticks)
    assert "3 compositions side by side" in short.text
    for digest in made.values():
        assert f"/compositions/{digest}" in short.links


def test_a_composition_links_to_itself_beside_the_one_it_is_like(pages: Pages, made: dict[str, str]) -> None:
    zebra, apple = made["zebra"][:12], made["apple"][:12]
    assert f"/compositions/compare?c={apple}&c={zebra}" in pages.read("compositions", made["apple"]).links
    page = pages.read("compositions", made["zebra"])
    assert f"/compositions/compare?c={zebra}" in page.links
    assert "Compare with another" in page.text


def test_the_better_one_on_the_same_text_is_said(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    averaged = {"plain_average": {"score": {"code": 70.0, "math": 80.0}, "average": 75.0}}
    record(filled, made["zebra"], {"code": 80.0, "math": 90.0}, document=averaged)
    record(filled, made["apple"], {"code": 95.0, "math": 89.0})
    text = compare(pages, made, "zebra", "apple").text
    assert (
        "apple is better on the same text: 92.0 against 85.0, mean of code and math; on math the other is better."
        in text
    )
    assert "Unlike zebra : router ridge" in text
    assert "code 80.0 best 95.0 math best 90.0 89.0 Mean 85.0 best 92.0 averaged weights of its experts 75.0 –" in text
    assert "code 6.25 best 5.26" in text
    assert "Routing accuracy share of a domain’s tokens that go to its expert code 75.0 % 75.0 %" in text
    assert "Tokens scored and the name of their file code x 5,000 5,000" in text
    assert "500 500" in text.partition("Parameters per token")[2]
    assert "reg evaluate" not in text
    assert "few" not in text
    assert "On other text" not in text


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("half", "said"), [(2.0, "do not overlap: the difference is more"), (9.0, "overlap: the difference may be")]
)
def test_the_verdict_says_whether_the_difference_may_be_chance(
    filled: Registry, pages: Pages, made: dict[str, str], half: float, said: str
) -> None:
    for name, scores in (("zebra", {"code": 80.0, "math": 90.0}), ("apple", {"code": 95.0, "math": 89.0})):
        ends = {"interval": {domain: [score - half, score + half] for domain, score in scores.items()}}
        figures = scored("x", scores)["figures"] | ends
        figures |= {"perplexity": {domain: 500 / score for domain, score in scores.items()}}
        record(filled, made[name], scores, document={"figures": figures})
    text = compare(pages, made, "zebra", "apple").text
    width = half / math.sqrt(2)  # of the mean of two domains
    apple, zebra = (f"{mean - width:.1f} to {mean + width:.1f}" for mean in (92.0, 85.0))
    assert f"The 95 % intervals, {apple} and {zebra}, {said}" in text
    unsure = said.startswith("overlap")
    assert f"apple is {'ahead' if unsure else 'better'} on the same text: 92.0 against 85.0" in text
    # a perplexity is as sure as the score that is made of it
    assert ("code 6.25 ahead, maybe by chance 5.26" in text) == unsure
    assert ("code 6.25 best 5.26" in text) != unsure


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("noise", "said"), [(0.001, "this is more than chance"), (0.5, "this may be chance")], ids=["sure", "chance"]
)
def test_the_same_windows_decide_what_intervals_leave_open(
    filled: Registry, pages: Pages, made: dict[str, str], noise: float, said: str
) -> None:
    own = [200.0 + at for at in range(20)]
    for name, behind in (("zebra", 11.0), ("apple", 10.0)):
        figures = scored("x", {"code": 90.0})["figures"] | {"interval": {"code": [80.0, 99.0]}}
        figures |= {
            "score": {"code": 100 * math.exp(-behind / 100)},
            "perplexity": {"code": 5 * math.exp(behind / 100)},
        }
        shift = noise if name == "zebra" else 0.0
        losses = [each + behind + 10 * shift * (-1) ** at for at, each in enumerate(own)]
        document = {"figures": figures, "losses": {"code": {"tokens": [100] * 20, "composition": losses, "own": own}}}
        record(filled, made[name], {"code": 90.0}, document=document)
    text = compare(pages, made, "zebra", "apple").text
    assert "On the same windows apple is ahead of zebra by " in text
    assert f" points (95 % interval): {said}." in text
    sure = "more" in said
    assert f"apple is {'better' if sure else 'ahead'} on the same text: 90.5 against 89.6, on code" in text
    assert ("ahead, maybe by chance 90.5" in text) != sure
    assert ("best 90.5" in text) == sure
    assert "overlap:" not in text


def test_scores_of_domains_have_their_intervals(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    scores = {"code": 80.0, "math": 90.0}
    record(filled, made["apple"], scores)
    assert "interval" not in compare(pages, made, "zebra", "apple").text
    ends = {"interval": {"code": [78.5, 81.25], "math": [89.0, 91.0], "law": [40.0, 60.0]}}
    figures = scored("x", scores | {"law": 50.0})["figures"] | ends
    figures |= {"perplexity": dict.fromkeys(ends["interval"], 5.0)}
    record(filled, made["zebra"], scores | {"law": 50.0}, document={"figures": figures})
    text = compare(pages, made, "zebra", "apple").text
    assert "100 is each domain’s own expert; with the 95 % interval code 80.0 78.5 to 81.3 80.0" in text
    assert "math 90.0 89.0 to 91.0 90.0 Mean 85.0 84.1 to 85.9 85.0" in text
    assert "The 95 % interval says how far a score could move on other text" in text
    assert "Score 95 % interval Perplexity" in text.partition("On other text")[2]
    assert "zebra law 50.0 40.0 to 60.0 5.00" in text


@pytest.mark.check
def test_compositions_have_their_sizes(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    def sizes(*names: str) -> str:
        return compare(pages, made, *names).text.partition("Size")[2].partition("reg ui")[0]

    zebra, mango = filled.plan(["code", "math"]), filled.plan(["code", "math", "law"], EnsembleRecipe())
    text = sizes("zebra", "Mango")
    cost = context_cost(zebra)
    assert cost is not None
    assert f"Parameters {compact(zebra.parameters)} {compact(mango.parameters)}" in text
    assert f"of them for context routing {compact(cost.parameters)} –" in text
    assert f"per token {compact(zebra.active_parameters)} {compact(mango.active_parameters)}" in text
    assert f"On disk {size(zebra.nbytes)} {size(mango.nbytes)}" in text
    filled.opt_out("law")
    text = sizes("zebra", "Mango")  # which cannot be planned any more
    assert f"Parameters {compact(zebra.parameters)} – of them for" in text
    assert f"On disk {size(zebra.nbytes)} –" in text
    filled.opt_out("code")
    assert "On disk" not in compare(pages, made, "zebra", "Mango").text


@pytest.mark.check
def test_sizes_are_planned_without_reading_an_array(
    filled: Registry, pages: Pages, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an array was read")

    for name in ("read", "sample"):
        monkeypatch.setattr(type(filled.arrays), name, refuse)
    assert "On disk" in compare(pages, made, "zebra", "Mango").text


@pytest.mark.check
def test_other_text_and_other_settings_stand_apart(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["zebra"], {"code": 80.0, "math": 90.0})
    for changes, why in (
        ({"digest": "1" * 64}, "unlike zebra: other text, another number of windows, or another tokenizer"),
        ({"digest": "1" * 64, "seq_len": 64}, "unlike zebra: windows of 64 tokens, not 32"),
        ({"dtype": "bfloat16"}, "unlike zebra: computed in bfloat16, not float32"),
    ):
        record(filled, made["apple"], {"code": 95.0, "law": 50.0}, **changes)
        page = compare(pages, made, "zebra", "apple")
        assert "They do not compare yet: no two were evaluated on the same text with the same settings." in page.text
        assert "reg evaluate DIR DIR --data code=FILE --data math=FILE --data law=FILE" in page.text
        assert "best" not in page.text.partition("On other text")[2]
        assert f"apple code 95.0 5.26 75.0 % 5,000 {why}" in page.text
        assert "no other was evaluated on this domain" in page.text
    record(filled, made["apple"], {"code": 95.0, "math": 60.0}, asked="2")
    assert "zebra is better on the same text: 85.0 against 77.5" in compare(pages, made, "zebra", "apple").text


def test_few_tokens_and_missing_scores_get_the_command(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    record(filled, made["zebra"], {"code": 80.0}, tokens=1999)
    record(filled, made["apple"], {"code": 80.04}, tokens=1999)
    text = compare(pages, made, "zebra", "apple", "Mango").text
    assert "zebra and apple are equal on the same text: 80.0, on code." in text
    assert "Mango has no scores yet." in text
    assert "few tokens" in text
    record(filled, made["Mango"], {"law": 80.0})
    assert "Mango has no scores on all of this text." in compare(pages, made, "zebra", "apple", "Mango").text
    assert "with law@1 added; an ensemble made just now" in text  # an ensemble has no router
    assert "reg evaluate DIR DIR DIR --windows 96 --data code=FILE --data math=FILE --data law=FILE" in text


@pytest.mark.check
def test_the_form_that_evaluates_what_lacks_is_linked(filled: Registry, tmp_path: Path) -> None:
    plans = {
        "zebra": filled.plan(["code", "math"]),
        "apple": filled.plan(["code", "math"], Recipe(router="ridge")),
        "Mango": filled.plan(["code", "math", "law"], EnsembleRecipe()),
    }
    made = {name: recorded(filled, plan, str(tmp_path / name)) for name, plan in plans.items()}
    for name in made:
        (tmp_path / name).mkdir()
    job = ["evaluate", str(tmp_path / "apple"), "--data", "code=a b.txt", "--windows", "4"]

    def shown(pages: Pages, *names: str) -> Page:
        where = url("compositions", "compare", c=[made[name] for name in names])
        assert "#evaluate" not in pages.ask(where).text
        assert "a b.txt" not in pages.ask(where).text  # only who may start jobs learns of their files
        return Page(pages.ask(where, headers=pages.cookie).text)

    def linked(page: Page) -> list[str]:
        forms = [link.partition("?")[0] for link in page.links if link.endswith("#evaluate")]
        return [name for name, digest in made.items() if f"/compositions/{digest}" in forms]

    with served(filled, may_write=True, program=(sys.executable, "-c", "")) as pages:
        assert linked(shown(pages, "zebra", "apple")) == ["zebra", "apple"]  # neither has a score
        record(filled, made["zebra"], {"code": 80.0, "math": 90.0})
        record(filled, made["apple"], {"code": 95.0}, digest="1" * 64)
        assert pages.jobs is not None
        pages.jobs.add("Evaluate apple", job, back="/", out="")
        page = shown(pages, "zebra", "apple")
        assert linked(page) == ["zebra"]
        assert "evaluate zebra on the same files as apple, with 4 windows a domain: Evaluate zebra" in page.text
        assert f"reg evaluate {tmp_path}/zebra {tmp_path}/apple --data 'code=a b.txt' --data math=FILE" in page.text
        record(filled, made["apple"], {"code": 95.0}, asked="2")
        assert linked(shown(pages, "zebra", "apple")) == []  # they compare
        page = shown(pages, "zebra", "apple", "Mango")
        assert linked(page) == ["Mango"]
        assert "evaluate Mango on the same files as apple" in page.text
        record(filled, made["zebra"], {"code": 80.0}, asked="3", tokens=1999, digest="2" * 64)
        record(filled, made["apple"], {"code": 95.0}, asked="3", tokens=1999, digest="2" * 64)
        (tmp_path / "apple").rmdir()
        page = shown(pages, "zebra", "apple")
        assert "few tokens" not in page.text  # the larger text compares them too
        filled.opt_out("law")
        assert "#evaluate" not in "".join(shown(pages, "zebra", "Mango").links)


@pytest.mark.check
def test_what_the_better_one_lacks_can_be_scored_from_the_comparison(filled: Registry, tmp_path: Path) -> None:
    plans = {"two": filled.plan(["code", "math"]), "three": filled.plan(["code", "math", "law"])}
    made = {name: recorded(filled, plan, str(tmp_path / name)) for name, plan in plans.items()}
    for name in made:
        (tmp_path / name).mkdir()
    record(filled, made["two"], {"code": 90.0, "math": 95.0})
    record(filled, made["three"], {"code": 80.0, "math": 90.0})
    settings = {"windows": 24, "seq_len": 32, "batch_size": 4, "device": None, "dtype": "float32"}
    with_law = {"code": 80.0, "math": 90.0, "law": 50.0}
    where = url("compositions", "compare", c=list(made.values()))
    with served(filled, may_write=True) as pages:

        def read(address: str) -> Page:
            return Page(pages.ask(address, headers=pages.cookie).text)

        def typed(page: Page) -> set[str | None]:
            return {value for tag, name, value in page.attributes if (tag, name) == ("input", "value")}

        assert "two has no expert of law. On law, none was scored." in read(where).text
        assert "evaluate two, three on the same files:" in read(where).text
        record(filled, made["three"], with_law, asked="2", document={"settings": settings})
        page = read(where)
        assert "two has no expert of law. On law, three was scored." in page.text
        assert "evaluate two on the same files as three, with 24 windows a domain: Evaluate two" in page.text
        form = next(link for link in page.links if link.endswith("#evaluate"))
        assert {"code", "math", "law", "24"} <= typed(read(form.partition("#")[0]))  # law is not among its members
        assert "law" not in typed(read(f"/compositions/{made['two']}"))
        record(filled, made["two"], with_law, asked="2", document={"settings": settings})
        assert "two has no expert of law." in read(where).text
        assert "On law," not in read(where).text


def test_a_mean_has_the_interval_that_its_composition_has(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    scores = {"code": 80.0, "math": 90.0}
    for name, low in (("zebra", 83.25), ("apple", 83.5)):
        ends = {"interval": {"code": [78.0, 82.0], "math": [88.0, 92.0]}, "average_interval": [low, 86.75]}
        figures = scored("x", scores)["figures"] | ends | {"perplexity": dict.fromkeys(scores, 5.0)}
        record(filled, made[name], scores, document={"figures": figures})
    text = compare(pages, made, "zebra", "apple").text
    assert "Mean 85.0 83.3 to 86.8 85.0 83.5 to 86.8" in text
    assert "83.3 to 86.8" in pages.read("compositions", made["zebra"]).text


def test_all_are_evaluated_on_more_text_where_few_tokens_were_scored(filled: Registry, tmp_path: Path) -> None:
    recipes = {"zebra": Recipe(), "apple": Recipe(router="ridge")}
    made = {
        name: recorded(filled, filled.plan(["code", "math"], recipe), str(tmp_path / name))
        for name, recipe in recipes.items()
    }
    for name, digest in made.items():
        (tmp_path / name).mkdir()
        record(filled, digest, {"code": 80.0}, tokens=1999)
    with served(filled, may_write=True) as pages:
        where = url("compositions", "compare", c=list(made.values()))
        page = Page(pages.ask(where, headers=pages.cookie).text)
    assert "more of the same text, evaluate zebra, apple on the same files, with 96 windows a domain:" in page.text
    both = [digest[:12] for digest in made.values()]
    forms = {f"{url('compositions', digest, c=both, windows='96')}#evaluate" for digest in made.values()}
    assert forms <= set(page.links)


def test_scores_against_other_versions_of_an_expert_do_not_compare(
    filled: Registry, pages: Pages, made: dict[str, str]
) -> None:
    record(filled, made["zebra"], {"code": 80.0})
    record(filled, made["apple"], {"code": 90.0}, own="f" * 64)
    text = compare(pages, made, "zebra", "apple").text
    assert "apple is better on the same text: its perplexity is the lowest on code. No scores compare." in text
    assert "The scores on code do not compare: they are relative to different versions of its own expert." in text
    assert "90.0" not in text


def test_an_opted_out_member_is_marked_and_its_composition_not_evaluated(
    filled: Registry, pages: Pages, made: dict[str, str]
) -> None:
    filled.opt_out("law")
    text = compare(pages, made, "zebra", "apple", "Mango").text
    assert "Mango contains law@1, which was opted out" in text
    assert "law@1 (opted out)" in text
    assert "reg evaluate DIR DIR --data code=FILE --data math=FILE FILE is" in text.replace(" Copy", "")
    assert "They do not compare yet: " in text
    text = compare(pages, made, "zebra", "Mango").text
    assert "reg evaluate" not in text
    assert "They do not compare: no two were evaluated on the same text with the same settings. Mango" in text


def test_addresses_that_name_nothing_or_too_much(pages: Pages, made: dict[str, str]) -> None:
    unknown = pages.read("compositions", "compare", c=["f" * 64, "<b>"], status=404)
    assert f"There is no composition '{'f' * 64}'" in unknown.text
    assert "no composition is chosen" in pages.read("compositions", "compare", status=400).text.lower()
    mixed = pages.read("compositions", "compare", c=[made["zebra"], "<b>", made["apple"], made["zebra"][:12]]).text
    assert "There is no composition <b>; it is left out." in mixed
    assert "2 compositions side by side" in mixed
    alone = compare(pages, made, "zebra")
    assert "Compare zebra" in alone.text
    assert ("option", "value", made["apple"][:12]) in alone.attributes
    assert ("option", "value", made["zebra"][:12]) not in alone.attributes


def test_up_to_four_stand_side_by_side(filled: Registry, pages: Pages, made: dict[str, str]) -> None:
    for number in (2, 3):
        made[f"k{number}"] = recorded(filled, filled.plan(["code", "math", "law"], Recipe(top_k=number)), "/else/zebra")
    page = compare(pages, made, "zebra", "apple", "Mango", "k2")
    assert "4 compositions side by side" in page.text
    assert f"zebra ({made['k2'][:12]})" in page.text
    assert "select" not in {tag for tag, _, _ in page.attributes}
    left = [link for link in page.links if link.startswith("/compositions/compare")]
    assert [link.count("c=") for link in left] == [3] * 4
    assert "5 compositions are chosen" in compare(pages, made, *made, status=400).text


def found(**texts: tuple[str, float | None]) -> dict[str, list[Measured]]:
    """Return what was found of a composition: domain → digest of the text, and score."""
    return {
        domain: [Measured(Text(digest, 32, "float32"), "x", 5000, "e", 5.0, score, None, None, None)]
        for domain, (digest, score) in texts.items()
    }


def test_pairs_that_read_different_texts_each_get_their_row() -> None:
    rows = shared_rows([found(a=("1", 50.0)), found(a=("1", 60.0)), found(a=("2", 70.0)), found(a=("2", 80.0))])
    assert [[cell is not None for cell in row.cells] for row in rows] == [
        [True, True, False, False],
        [False, False, True, True],
    ]
    assert shared_rows([found(a=("1", 50.0)), found(b=("1", 50.0))]) == []
    assert mean_of([]) is None
    assert found_in([], []) == {}


def test_means_are_over_the_domains_of_as_many_as_possible() -> None:
    three = [found(a=("1", 50.0), b=("1", 90.0)), found(a=("1", 60.0), b=("1", 10.0)), found(a=("1", 55.0))]
    rows = shared_rows(three)
    mean = mean_of(rows)
    assert mean is not None
    assert mean.scores == [50.0, 60.0, 55.0]
    better = "y is best on the same text: 60.0 against 50.0 of x and 55.0 of z, on a."
    assert verdict("xyz", three, rows, mean) == better
    experts = ["ab", "ac", "ab"]
    assert readers("b", three, rows) == {0, 1}  # they read the same text
    assert verdict("xyz", three, rows, mean, experts) == f"{better} y has no expert of b. On b, x and y were scored."
    apart = [three[0], found(a=("1", 60.0), b=("2", 10.0)), three[2]]
    said = "y has no expert of b. On b, each was scored on other text."
    assert readers("b", apart, shared_rows(apart)) == set()
    assert verdict("xyz", apart, shared_rows(apart), mean, experts) == f"{better} {said}"
    assert verdict("xyz", three, rows, mean, ["a", "a", "ab"]).endswith(
        "x and y have no expert of b. On b, x and y were scored."
    )
    three[1].pop("b")
    said = "y and z have no expert of b. y has no expert of d. On b, x was scored. On d, none was scored."
    assert verdict("xyz", three, shared_rows(three), mean, ["bad", "ac", "da"]).endswith(said)
    two = [found(a=("1", None)), found(a=("1", None))]
    rows = shared_rows(two)
    assert mean_of(rows) is None
    assert (
        verdict("xy", two, rows, None)
        == "By perplexity none of them is better on all of the same text. No scores compare."
    )
