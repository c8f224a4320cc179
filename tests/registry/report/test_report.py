"""Proves: a report says what evaluations and statistics say, needs nothing else, and lets no name become code."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import ExtractionSettings, Recipe, Registry, TestSettings
from registry.checkpoint import TrainingRecord
from registry.design import expert_colours
from registry.errors import CheckpointError, NotFoundError, OutputError
from registry.evaluation.stored import score_text
from registry.io.display import printable
from registry.report import ReportData, page
from registry.report.build import training_figures
from registry.report.charts import charts
from registry.report.data import POINTS, ActiveExperts, Audit, Evaluated, ScoreRow, Training, Verdict, Warned
from registry.report.files import write_page
from tests.conftest import Zoo
from tests.pages import Page

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'{{7*7919}}<!--\u2028"


def parts(text: str) -> tuple[Page, list[str]]:
    """Return a page without its scripts and styles, and the texts of its scripts."""
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    return Page(re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)), scripts


def hostile(figures: ReportData) -> ReportData:
    """Return figures in which every text that comes from anywhere is hostile."""
    assert figures.routing is not None
    shares = {HOSTILE: next(iter(figures.routing.shares.values()))}
    members = tuple(replace(member, license=HOSTILE, drowned=HOSTILE) for member in figures.members)
    return replace(
        figures,
        name=HOSTILE,
        host=HOSTILE,
        recipe={HOSTILE: HOSTILE},
        members=members,
        routing=replace(figures.routing, shares=shares),
        scores=(ScoreRow(HOSTILE, "composition", {HOSTILE: 99.0}, {HOSTILE: 2.0}, 99.0),),
        evaluated=Evaluated(HOSTILE, {HOSTILE: 10}, {HOSTILE: HOSTILE}),
        active_experts=tuple(ActiveExperts(k, k, {HOSTILE: 90.0 + k}, {HOSTILE: 2.0}, 90.0 + k) for k in (1, 2)),
        trainings=(Training(HOSTILE, 2, 64, 5.0, 4.0, (1.0, 2.0), (5.0, 4.5)),),
        training=Training(HOSTILE, 2, 64, 5.0, 4.0, (1.0, 2.0), (5.0, 4.5)),
        audits=(Audit(HOSTILE, 4, 1, 0.25, 0.5, 0.75, 8, 16, HOSTILE),),
        lineage=tuple(replace(node, label=HOSTILE, told=HOSTILE) for node in figures.lineage),
        notes=(HOSTILE,),
        verdict=Verdict(HOSTILE, f"reg {HOSTILE}"),
        warnings=(Warned(HOSTILE, HOSTILE, f"reg {HOSTILE}"),),
    )


def test_without_evaluation_routing_is_predicted(world: tuple[Registry, Path], predicted: ReportData) -> None:
    registry, _ = world
    plan = registry.plan(["code", "german"])
    assert (predicted.name, predicted.digest, predicted.experts) == ("moe", plan.digest, ("code", "german"))
    assert (predicted.parameters, predicted.active_parameters) == (plan.parameters, plan.active_parameters)
    assert predicted.routing is not None
    assert not predicted.routing.measured
    preview = registry.preview(["code", "german"])
    assert list(predicted.routing.accuracy.values()) == [member.accuracy for member in preview.members]
    assert predicted.scores == ()
    assert [(node.kind, node.label) for node in predicted.lineage] == [
        ("base", "base@1"),
        ("expert", "code@1"),
        ("expert", "german@1"),
        ("composition", "moe"),  # as pages call it: by its folder
    ]
    assert predicted.lineage[1].of == (predicted.lineage[0].id,)
    assert predicted.lineage[-1].told == f"{plan.digest[:12]}, this composition"
    assert predicted.notes[2:] == (preview.means, *preview.notes)


@pytest.mark.check
def test_stored_evaluation_and_data_give_the_same_figures(
    world: tuple[Registry, Path], zoo: Zoo, tmp_path: Path
) -> None:
    registry, moe = world
    data = {name: [zoo.test[name]] for name in ("code", "german")}
    measured = registry.report(moe, data, SETTINGS)
    assert [row.kind for row in measured.scores] == ["composition", "oracle", "average", "base", "expert", "expert"]
    stored = registry.report(measured.digest[:10])
    assert stored.routing == measured.routing
    assert stored.routing is not None
    assert stored.routing.measured
    assert stored.scores == measured.scores
    assert [note for note in stored.notes if "perfect routing" in note] == []
    (evaluation,) = registry.evaluations(registry.compositions()[0])
    assert evaluation.document["figures"]["overall_accuracy"] == stored.routing.accuracy
    text = parts(page(measured))[0].text
    for said in (score_text(measured.scores[0].average), "measured", "oracle"):
        assert said in text
    json.dumps(measured.document(), allow_nan=False)


@pytest.mark.check
def test_active_experts_are_those_of_the_latest_evaluation_that_has_them(
    world: tuple[Registry, Path], zoo: Zoo, tmp_path: Path, predicted: ReportData
) -> None:
    registry, _ = world
    assert predicted.active_experts == ()
    registry.compose(["code", "german"], tmp_path / "active", Recipe(trunk="base"))
    data = {name: [zoo.test[name]] for name in ("code", "german")}
    _, *rows = registry.evaluate([tmp_path / "active"], data, SETTINGS, active_experts="all")
    registry.evaluate([tmp_path / "active"], data, SETTINGS)
    figures = registry.report(tmp_path / "active")
    assert "perfect routing was not scored: evaluate with --oracle" in figures.notes
    assert [(row.experts_per_token, row.active_parameters, row.average) for row in figures.active_experts] == [
        (row.experts_per_token, row.active_parameters, row.average) for row in rows
    ]
    text = page(figures)
    assert 'data-chart="active" role="img" aria-label=' in text
    assert f"{rows[0].perplexity['german']:.2f}" in text
    bare = replace(figures, active_experts=tuple(replace(r, score={}, average=None) for r in figures.active_experts))
    for shown, kind, title in ((figures, "score", "normalised score"), (bare, "perplexity", "perplexity")):
        chart = charts(shown)["active"]
        assert chart["layer"][0]["encoding"]["y"]["axis"]["title"] == title
        assert {(p["count"], p["domain"]): p["value"] for p in chart["data"]["values"]} == {
            (row.experts_per_token, domain): value for row in rows for domain, value in getattr(row, kind).items()
        }
    means = charts(figures)["active"]["layer"][2]["data"]["values"]
    assert [p["value"] for p in means] == [row.average for row in rows]
    one = replace(figures, active_experts=figures.active_experts[:1], scores=figures.scores[:1])
    assert "active" not in charts(one)
    assert "<details open>" in page(one)


@pytest.mark.check
def test_stored_audits_are_in_the_report(
    world: tuple[Registry, Path], zoo: Zoo, tmp_path: Path, predicted: ReportData
) -> None:
    registry, _ = world
    assert predicted.audits == ()
    assert 'id="h-extraction"' not in page(predicted)
    registry.compose(["code", "german"], tmp_path / "audited", Recipe(trunk="mean"))
    settings = ExtractionSettings(documents=2, prefix=8, continued=4, samples=2, device="cpu")
    (first,) = registry.audit_extraction([tmp_path / "audited"], [zoo.test["code"]], settings)
    (second,) = registry.audit_extraction([tmp_path / "audited"], [zoo.train["german"]], settings)
    figures = registry.report(tmp_path / "audited")
    latest, earlier = registry.audits(registry.compositions(figures.digest)[0])
    assert figures.audits == tuple(
        Audit(text, 2, one.extracted, one.rate, one.mean, max(one.similarity), 8, 4, stored.evaluated_at)
        for text, one, stored in (("german.train.jsonl", second, latest), ("code.test.jsonl", first, earlier))
    )
    shown = f"2 {second.extracted} {100 * second.rate:.1f} % {second.mean:.3f} {max(second.similarity):.3f}"
    assert f"german.train.jsonl {shown} 8 4 {latest.evaluated_at[:10]}" in parts(page(figures))[0].text
    assert registry.report(figures.digest).document()["audits"][1]["text"] == "code.test.jsonl"


def test_long_loss_curves_are_means_of_as_many() -> None:
    for count, points in ((POINTS, POINTS), (POINTS + 1, (POINTS + 2) // 2), (2000, POINTS)):
        record = TrainingRecord(3 * count - 1, 10, 5.0, 4.0, 3, tuple(float(number) for number in range(count)))
        training = training_figures("x", record)
        assert len(training.at) == len(training.loss) == points
        size = -(-count // points)
        assert training.loss[0] == sum(range(size)) / size
        assert training.at[0] == sum(record.at[:size]) / size
        assert training.at[-1] <= record.steps


def test_page_needs_nothing_and_runs_only_its_own_code(predicted: ReportData) -> None:
    text = page(predicted)
    assert page(predicted) == text
    found, scripts = parts(text)
    assert not [name for _, name, _ in found.attributes if name in ("src", "href", "srcset")]
    (policy,) = [value or "" for tag, name, value in found.attributes if (tag, name) == ("meta", "content")
                 and str(value).startswith("default-src")]  # fmt: skip
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert re.findall(r"<script([^>]*)>", text) == [' type="application/json" id="charts"', "", ""]
    for body in scripts[1:]:
        assert base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() in policy
    places = {value for _, name, value in found.attributes if name == "data-chart"}
    assert set(json.loads(scripts[0])) == set(charts(predicted)) == places
    assert len(text) < 1_500_000


def test_hostile_names_stay_text(predicted: ReportData) -> None:
    found, scripts = parts(page(hostile(predicted)))
    assert not [tag for tag, name, _ in found.attributes if tag == "img" or name.startswith("on")]
    assert found.text.count(" ".join(HOSTILE.split())) > 8
    assert len(scripts) == 3
    assert printable(HOSTILE) == json.loads(scripts[0])["confusion"]["data"]["values"][0]["domain"]
    assert "55433" not in found.text  # long enough not to be in a digest


def test_every_expert_has_the_colour_that_it_has_everywhere(predicted: ReportData) -> None:
    assert predicted.colours == expert_colours(["code", "german"])
    text = json.dumps(charts(predicted))
    assert set(re.findall(r"var\(--e([0-9]+)\)", text)) == {str(number) for number in predicted.colours.values()}
    assert re.search(r"#[0-9a-f]{6}", text) is None
    assert f'<span class="dot e{predicted.colours["code"]}"' in page(predicted)


def test_what_is_not_here_is_left_out_and_noted(world: tuple[Registry, Path], tmp_path: Path) -> None:
    _, moe = world
    with Registry(tmp_path / "empty") as registry:
        figures = registry.report(moe)
    assert (figures.routing, figures.overlap, figures.made) == (None, (), None)
    assert [member.ref for member in figures.members] == [None, None]
    assert any("not registered here" in note for note in figures.notes)
    assert "not registered here" in parts(page(figures))[0].text


def test_one_expert_has_a_report_too(world: tuple[Registry, Path], tmp_path: Path) -> None:
    registry, _ = world
    registry.compose(["code"], tmp_path / "one")
    assert "1 active per token" in parts(page(registry.report(tmp_path / "one")))[0].text


def test_refusals(world: tuple[Registry, Path], zoo: Zoo, tmp_path: Path) -> None:
    registry, _ = world
    with pytest.raises(CheckpointError, match="not composed by this program"):
        registry.report(zoo.base)
    with pytest.raises(CheckpointError, match="is not a folder"):
        registry.report(tmp_path / "absent")
    with pytest.raises(NotFoundError, match="there is no composition"):
        registry.report("abcdef123")
    (made, *_) = registry.compositions()
    with pytest.raises(CheckpointError, match="no folder to evaluate"):
        registry.report(made.digest, {"code": [zoo.test["code"]]})
    (out := tmp_path / "out").mkdir()
    write_page(out / "report.html", "one", replace=False)
    with pytest.raises(OutputError, match="exists"):
        write_page(out / "report.html", "two", replace=False)
    write_page(out / "report.html", "two", replace=True)
    assert [path.name for path in out.iterdir()] == ["report.html"]
    assert (out / "report.html").read_text() == "two"


@pytest.mark.check
def test_the_command_writes_a_file_or_prints_figures(world: tuple[Registry, Path], tmp_path: Path) -> None:
    registry, moe = world
    out = tmp_path / "report.html"
    for words, code, told in (
        (("--out", str(out)), 0, f"wrote {out}"),
        (("--out", str(out)), 1, "or replace it: --force"),
        (("--out", str(out), "--force"), 0, f"wrote {out}"),
        (("--json",), 0, '"name": "moe"'),
        ((), 2, "give --out FILE, or --json"),
        (("--out", str(tmp_path / "no" / "report.html")), 1, "is not a folder"),
    ):
        result = CliRunner().invoke(main, ["--home", str(registry.home.path), "report", str(moe), *words])
        assert (result.exit_code, told in result.output) == (code, True), result.output
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
