"""Proves: a report says first how good a composition is, on how much text, what is wrong, and what mends it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry, TestSettings
from registry.evaluation.stored import score_text
from registry.report import ReportData, page
from registry.report.charts import MEAN, charts, score_chart
from registry.report.data import ActiveExperts, Evaluated, MemberFigures, RoutingData, ScoreRow, Warned
from registry.report.score_words import INTERVAL_MEANS, percent, unbroken
from registry.report.theme import linear_axis, ticks
from registry.report.verdict import advice, verdict
from tests.conftest import Zoo

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3, device="cpu")


def figures(**changes: Any) -> ReportData:
    """Return the figures of an evaluated mixture without a fault."""
    members = tuple(MemberFigures(name, f"{name}@1", "0" * 64, 1000, None) for name in ("code", "math"))
    sound: dict[str, Any] = {
        **dict.fromkeys(("made", "parameters", "active_parameters")),
        **dict.fromkeys(("overlap", "active_experts", "trainings", "audits", "lineage"), ()),
        **dict.fromkeys(("name", "folder"), "moe"),
        "digest": "0" * 64,
        "host": "mixtral",
        "indistinct": 0.6,
        "top_k": 1,
        "recipe": {"router": "context", "trunk": "regmean"},
        "members": members,
        "routing": routing(0.9, 0.9),
        "scores": (scored("composition", 94, 92), scored("oracle", 96, 95), scored("average", 80, 79)),
        "evaluated": Evaluated(None, {"code": 9000, "math": 9000}, {"code": "a", "math": "b"}),
    }
    return ReportData(**sound | changes)


def unscored(**changes: Any) -> ReportData:
    """Return the figures of a mixture that was not evaluated."""
    return figures(**{"scores": (), "evaluated": None, "routing": None} | changes)


def scored(kind: str, code: float, math: float | None = None, **more: Any) -> ScoreRow:
    score = {"code": code} if math is None else {"code": code, "math": math}
    return ScoreRow(kind, kind, score, dict.fromkeys(score, 5.0), sum(score.values()) / len(score), **more)


def routing(code: float, math: float) -> RoutingData:
    shares = {"code": {"code": [code], "math": [1 - code]}, "math": {"code": [1 - math], "math": [math]}}
    load = {"code": [(code + 1 - math) / 2], "math": [(math + 1 - code) / 2]}
    return RoutingData(True, (0,), shares, load)


def test_the_verdict_says_how_good_it_is_on_which_sample() -> None:
    found = verdict(figures())
    assert found.command is None
    assert found.text == (
        "The mixture reaches 93.0 % of its experts on 18,000 tokens of 2 domains; averaged weights reach 79.5 %; "
        "perfect routing would reach 95.5 %, so routing costs 2.5 points and the shared weights 4.5."
    )
    assert advice(figures()) == ()
    text = page(replace(figures(), verdict=found))
    assert "<strong>93.0\u00a0%</strong> of its experts" in text
    assert "No warnings: nothing asks for another recipe or for more text." in text
    law = ScoreRow("moe", "composition", {}, {"law": 7.25}, None)
    found = verdict(figures(scores=(law,), evaluated=Evaluated(None, {"law": 9000}, {"law": "a"})))
    assert found.text.startswith("The mixture has a perplexity of 7.25 on 9,000 tokens of one domain, law. There is no")
    other = replace(scored("average", 80, 79), score={"code": 80.0, "law": 79.0})
    assert figures(scores=(scored("composition", 94, 92), other)).score_of("average") is None  # of other experts


def test_the_verdict_says_what_is_lost_where() -> None:
    for own, oracle, said in (
        (98.65, 98.74, "98.7 %, so routing costs no point and the shared weights 1.3."),
        (97.5, 98.5, "98.5 %, so routing costs 1.0 point and the shared weights 1.5."),
        (99.0, 98.0, "98.0 %, so routing costs no point and the shared weights 2.0."),  # mixing two experts helped
        (99.0, 101.0, "101.0 %, so routing costs 2.0 points and the shared weights none."),
        (101.0, 101.0, "101.0 %."),
    ):
        found = verdict(figures(scores=(scored("composition", own, own), scored("oracle", oracle, oracle))))
        assert found.text.endswith(f"; perfect routing would reach {said}")


def test_what_is_not_evaluated_says_how_to() -> None:
    found = verdict(unscored())
    assert found.text == "Not evaluated yet: reg evaluate shows how good this mixture is."
    assert found.command == "reg evaluate moe --data code=FILE --data math=FILE --baselines --oracle"
    ensemble = verdict(unscored(to="ensemble", folder=None))
    assert ensemble.command == "reg evaluate DIR --data code=FILE --data math=FILE --baselines"
    simoe = unscored(to="simoe")  # whose members have no domains
    assert verdict(simoe).command == "reg evaluate moe --data DOMAIN=FILE"
    law = Evaluated(None, {"law": 510}, {"law": "a"})
    (small,) = advice(replace(simoe, scores=(scored("composition", 94),), evaluated=law))
    assert small.command == "reg evaluate moe --data law=FILE"


def test_the_verdict_and_the_chart_have_the_interval_of_the_score() -> None:
    own = scored("composition", 94, 92, interval={"code": [93, 95.04]}, average_interval=[92.25, 93.75])
    known = figures(scores=(own, scored("oracle", 96, 95)))
    found = verdict(known)
    assert "reaches 93.0 % (92.3 to 93.8) of its experts" in found.text
    rows = {row["domain"]: row for row in score_chart(known, own)["data"]["values"]}
    assert (rows["code"]["from"], rows["code"]["to"], rows["code"]["interval"]) == (93, 95.04, "93.0 to 95.0")
    assert (rows[MEAN]["from"], rows[MEAN]["to"]) == (92.25, 93.75)
    assert "interval" not in rows["math"]
    text = page(replace(known, verdict=found))
    assert "92.3 to 93.8</td>" in text
    assert INTERVAL_MEANS in text
    assert INTERVAL_MEANS not in page(figures())
    assert text.count('<th scope="row">perfect routing</th>') == 2  # as pages call it


def test_the_verdict_says_whether_averaged_weights_differ_by_more_than_chance() -> None:
    of_both, same = "of the mixture and of averaged weights, 92.3 to 93.8 and ", "On the same windows the mixture is "
    cases: list[tuple[list[float] | None, list[float] | None, str]] = [
        ([78.0, 81.0], None, f"{of_both}78.0 to 81.0, do not overlap: the difference is more than chance."),
        ([91.0, 92.5], None, f"{of_both}91.0 to 92.5, overlap: the difference may be chance."),
        ([94.0, 95.0], None, f"{of_both}94.0 to 95.0, do not overlap: the difference is more than chance."),
        ([91.0, 92.5], [1.25, 2.0], f"{same}ahead of averaged weights by 1.3 to 2.0 points"),
        (None, [-0.5, 2.0], f"{same}ahead of averaged weights by −0.5 to 2.0 points (95\u00a0% interval): this may be"),
        (None, [-3.0, -0.01], f"{same}behind averaged weights by 0.01 to 3.00 points"),
        (None, None, "averaged weights reach 79.5 %."),
    ]
    for plain, ahead, said in cases:
        own = scored("composition", 94, 92, average_interval=[92.25, 93.75], ahead_of_average=ahead)
        text = verdict(figures(scores=(own, scored("average", 80, 79, average_interval=plain)))).text
        assert said in text
        assert ("intervals of" in text, "windows" in text) == (plain is not None and ahead is None, ahead is not None)


def test_a_small_sample_of_one_domain_is_said_in_the_headline() -> None:
    one = Evaluated(None, {"code": 510}, {"code": "a"})
    few = figures(scores=(scored("composition", 94),), evaluated=one, routing=None)
    assert verdict(few).text == "The mixture reaches 94.0 % of its expert code on 510 tokens of one domain, code."
    (small,) = advice(few)  # one command mends both
    assert small.text.startswith("Few tokens: 510 tokens of one domain, code; below 2,000 tokens of a domain")
    assert small.text.endswith("One of 2 members is not evaluated on its own domain: math.")
    assert small.mend == "Evaluate on more text, of every member's domain."
    assert small.command == "reg evaluate moe --data code=FILE --data math=FILE --baselines --oracle"
    text = page(replace(few, verdict=verdict(few), warnings=advice(few)))
    assert "No warnings" not in text
    assert text.count("few tokens</span>") == 2  # beside the figure and the chart
    assert "few tokens</span>" not in page(figures())


DROWNED = "it brings 0.3% of the statistics that routers are solved from: try --balance tokens"
PREDICTED = tuple(replace(one, drowned=DROWNED if one.name == "code" else None) for one in figures().members)
ONE_GETS_ALL = RoutingData(True, (0,), {"law": {"code": [0.9], "math": [0.1]}}, {"code": [0.9], "math": [0.1]})
LOST, ALIKE = {"routing": routing(0.3, 0.9)}, {"routing": None, "overlap": (("code", "math", 0.82),)}
WORSE = (scored("composition", 78, 79), scored("average", 80, 79))
COSTLY = (scored("composition", 88, 88), scored("oracle", 96, 95))
RIDGE, OF_TWO = {"recipe": {"router": "ridge"}}, "compose --experts code,math"
FAULTS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("code loses its own text: only 30.0 % of its own", None, LOST),
    ("code loses its own text", f"{OF_TWO} --router context", LOST | RIDGE),
    ("30.0 % of code's text goes to math.", None, {"routing": routing(0.7, 0.9)}),
    ("code and math overlap in token counts: 82 % of their texts cannot be told apart.", None, ALIKE),
    (
        "code and math overlap in activations: 82 % of their tokens cannot be told apart.",
        f"{OF_TWO} --to ensemble --routing posterior",
        ALIKE | {"to": "ensemble", "recipe": {"routing": "perplexity"}},
    ),
    ("Averaged weights are better: 79.5 % against 78.5 %.", f"{OF_TWO} --to dense --trunk mean", {"scores": WORSE}),
    ("Routing costs 7.5 points: perfect routing", f"{OF_TWO} --router context", RIDGE | {"scores": COSTLY}),
    (
        "Load collapses onto code: it gets 90.0 % of all tokens, where 50.0 % is even.",
        "train moe --data FILE",
        {"recipe": {"router": "random"}, "from_base": 2, "routing": ONE_GETS_ALL},
    ),
    (
        "code is predicted to lose its own text: it brings 0.3 % of the statistics",
        f"{OF_TWO} --router ridge --balance tokens",
        RIDGE | {"members": PREDICTED, "routing": None},
    ),
]


def test_each_fault_is_a_warning_with_what_mends_it() -> None:
    for text, command, changes in FAULTS:
        (warning,) = advice(figures(**changes))
        assert warning.text.startswith(text)
        assert warning.command == (command and f"reg {command} --out DIR")
        assert warning.mend
    assert advice(figures(overlap=(("code", "math", 0.9),))) == ()  # a measurement separates them


def test_axes_include_100_and_have_several_ticks() -> None:
    chart = charts(figures())["scores"]
    axis = chart["layer"][0]["encoding"]["x"]["axis"]["values"]
    assert axis == [75, 80, 85, 90, 95, 100]
    rows = {row["domain"]: row for row in chart["data"]["values"]}
    assert [rows["code"][key] for key in ("average", "own", "oracle")] == [80, 94, 96]
    assert rows["all domains"]["own"] == 93
    active = tuple(ActiveExperts(k, k, {"code": 92.0}, {"code": 5.0}, 92.0) for k in (1, 2))
    curve = charts(figures(active_experts=active))["active"]
    assert curve["layer"][0]["encoding"]["y"]["axis"]["values"][-1] == 100
    assert [row["name"] for row in curve["layer"][4]["data"]["values"]] == ["averaged weights", "perfect routing"]
    for low, high in ((0, 1), (0, 0.003), (92.1, 92.1), (20.3, 104), (4.1, 4.1001), (0, 1e9), (5.0, 5.0 + 1e-9)):
        values = ticks(low, high)
        assert 3 <= len(values) <= 8
        assert values[0] <= low <= high <= values[-1] + 1e-8
        assert values == sorted(set(values))


@pytest.mark.check
def test_labels_of_an_axis_are_its_ticks() -> None:
    drawing = pytest.importorskip("vl_convert")
    for low, high, share, labels in (
        (88, 100, False, "87.5 90.0 92.5 95.0 97.5 100.0"),
        (0, 0.12, True, "0.0% 2.5% 5.0% 7.5% 10.0% 12.5%"),
        (0, 0.1, True, "0% 2% 4% 6% 8% 10%"),
        (0, 5000, False, "0 1,000 2,000 3,000 4,000 5,000"),
    ):
        axis = linear_axis("value", "value", ticks(low, high), share=share)
        spec = {"data": {"values": [{"value": low}]}, "mark": "point", "encoding": {"x": axis}, "width": 800}
        drawn = re.findall(r"<text[^>]*>([0-9][^<]*)</text>", drawing.vegalite_to_svg(spec))
        assert " ".join(drawn) == labels


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("to", ["moe", "ensemble", "dense"])
def test_reports_of_every_kind(world: tuple[Registry, Path], zoo: Zoo, tmp_path: Path, to: str) -> None:
    registry, _ = world
    prompt = Recipe(to="ensemble", routing="prompt-perplexity", routing_tokens=8, top_k=1)
    recipe = prompt if to == "ensemble" else Recipe(to=to, router="ridge" if to == "moe" else "context")
    plan = registry.compose(["code", "german"], tmp_path / "out", recipe)
    before = registry.report(tmp_path / "out")
    data = {name: [zoo.test[name]] for name in ("code", "german")}
    registry.evaluate([tmp_path / "out"], data, SETTINGS, baselines=True)
    after = registry.report(tmp_path / "out")
    assert before.verdict is not None
    assert before.verdict.text.startswith("Not evaluated yet")
    assert after.verdict is not None
    assert f"The {after.kind} reaches" in after.verdict.text
    assert "averaged weights reach" in after.verdict.text
    assert not any("no evaluation" in note or "predicted" in note for note in after.notes)
    for found in (before, after):
        text = page(found)
        assert ('id="h-load"' in text) == (found.routing is not None)
        assert "active per token" not in text or to != "dense"
    assert (after.routing is None) == (to == "dense")
    (stored,) = registry.evaluations(registry.compositions(plan.digest)[0])
    early = {**stored.document, "figures": {**stored.document["figures"], "routing": {}, "weights": {}}}
    registry.catalog.record_evaluation(plan.digest, stored.asked, early)
    if to == "ensemble":  # what it lacks is not called missing
        (note,) = registry.report(plan.digest).notes
        measured = "the weights of an ensemble are measured on text, never predicted"
        assert note == f"{measured}: the stored evaluation has none: evaluate again"


def test_members_that_were_opted_out_since_are_a_warning(world: tuple[Registry, Path]) -> None:
    registry, moe = world
    registry.opt_out("german")
    found = registry.report(moe)
    (warning, *_) = found.warnings
    assert warning.text == "german@1 was opted out after this was composed."
    assert warning.mend == "Delete this composition; code alone is left of it."
    assert warning.command is None
    assert '<td class="text">german@1 <span class="badge bad">opted out</span></td>' in page(found)
    assert '<bdi>german</bdi><span class="unseen"> (opted out)</span>' in page(found)
    assert "<bdi>code</bdi><span" not in page(found)


def test_scores_are_rounded_as_charts_round_them() -> None:
    values = (99.65, 99.64, 91.25, 89.625, 100, None, float("inf"))
    assert [score_text(value) for value in values] == ["99.7", "99.6", "91.3", "89.6", "100.0", "–", "inf"]
    assert percent(91.25) == "91.3 %"


def test_no_line_of_a_page_ends_before_a_percent_sign(predicted: ReportData) -> None:
    assert unbroken("92% of code, 0 % and 93.3 %, but 5%d") == "92\u00a0% of code, 0\u00a0% and 93.3\u00a0%, but 5%d"
    warned = replace(predicted, warnings=(Warned("it gets 9.5 % of 10%", "use 50 %"),), notes=("7.5% of it",))
    text = page(warned).partition("<main")[2].partition("<script")[0]
    assert "it gets 9.5\u00a0% of 10\u00a0%" in text
    assert re.findall(r"[0-9] %", text) == []
    assert "\u00a0" not in str(advice(figures(routing=routing(0.7, 0.9))))  # which --json prints
