"""Proves: a report says what evaluations and statistics say, needs nothing else, and lets no name become code."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import ExtractionSettings, Recipe, Registry, TestSettings
from registry.checkpoint import TrainingRecord
from registry.design import expert_colours
from registry.errors import CheckpointError, NotFoundError, OutputError
from registry.io.display import printable
from registry.report import ReportData, page
from registry.report.charts import charts
from registry.report.data import POINTS, ActiveExperts, Audit, Evaluated, ScoreRow, Training, Verdict, Warned
from registry.report.gathering import training_figures
from registry.report.verdict import score_text
from registry.report.write_page import write_page
from tests.conftest import Zoo

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'{{7*7919}}<!--\u2028"
VOID = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """A page's elements, every one closed where it has to be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"]:
            self.text.append(data)


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
    assert predicted.curves == ()  # no ridge strength
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
    assert "typically 5 points higher or lower" in preview.means
    assert "after 32 tokens" in preview.notes[0]


def test_ridge_routers_have_curves_of_their_strength(world: tuple[Registry, Path], tmp_path: Path) -> None:
    registry, _ = world
    registry.compose(["code", "german"], tmp_path / "ridge", Recipe(router="ridge"))
    figures = registry.report(tmp_path / "ridge")
    assert [curve.used for curve in figures.curves] == [0.01, 0.01]
    assert "curves" in charts(figures)
    assert "curves" in json.loads(Page(page(figures)).scripts[0])
    assert len(figures.notes) == 3


@pytest.mark.check
def test_perfect_routing_that_was_not_scored_is_noted(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    digest = filled.compose(["code", "math"], tmp_path / "moe").digest
    filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS)
    assert "perfect routing was not scored: evaluate with --oracle" in filled.report(digest).notes


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
    text = "".join(Page(page(measured)).text)
    assert score_text(measured.scores[0].average) in text
    assert "measured" in text
    assert "oracle" in text
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
    assert [(row.experts_per_token, row.active_parameters, row.average) for row in figures.active_experts] == [
        (row.experts_per_token, row.active_parameters, row.average) for row in rows
    ]
    chart = charts(figures)["active"]
    assert chart["layer"][0]["encoding"]["y"]["axis"]["title"] == "normalised score"
    assert {(p["count"], p["domain"]): p["value"] for p in chart["data"]["values"]} == {
        (row.experts_per_token, domain): score for row in rows for domain, score in row.score.items()
    }
    assert [p["value"] for p in chart["layer"][2]["data"]["values"]] == [row.average for row in rows]
    text = page(figures)
    assert 'data-chart="active" role="img" aria-label=' in text
    assert f"{rows[0].perplexity['german']:.2f}" in text
    bare = replace(figures, active_experts=tuple(replace(r, score={}, average=None) for r in figures.active_experts))
    chart = charts(bare)["active"]
    assert chart["layer"][0]["encoding"]["y"]["axis"]["title"] == "perplexity"
    assert {(p["count"], p["domain"]): p["value"] for p in chart["data"]["values"]} == {
        (row.experts_per_token, domain): value for row in rows for domain, value in row.perplexity.items()
    }
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
    found = Page(page(figures))
    cells = [text.strip() for text in found.text]
    start = cells.index("german.train.jsonl")
    assert cells[start + 1 : start + 3] == ["2", str(second.extracted)]
    assert cells[start + 3 : start + 6] == [
        f"{100 * second.rate:.1f}\u00a0%",
        f"{second.mean:.3f}",
        f"{max(second.similarity):.3f}",
    ]
    assert cells[start + 6 : start + 9] == ["8", "4", latest.evaluated_at[:10]]
    assert registry.report(figures.digest).document()["audits"][1]["text"] == "code.test.jsonl"


@pytest.mark.parametrize(("count", "points"), [(POINTS, POINTS), (POINTS + 1, (POINTS + 2) // 2), (2000, POINTS)])
def test_long_loss_curves_are_means_of_as_many(count: int, points: int) -> None:
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
    found = Page(text)
    assert not [tag for tag, given in found.tags for name in ("src", "href", "srcset") if name in given]
    (policy,) = [given["content"] for tag, given in found.tags if given.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    kinds = [given.get("type") for tag, given in found.tags if tag == "script"]
    bodies = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert kinds == ["application/json", None, None]
    for body in bodies:
        assert base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() in policy
    specs = json.loads(found.scripts[0])
    assert (
        set(specs)
        == set(charts(predicted))
        == {given["data-chart"] for _, given in found.tags if "data-chart" in given}
    )
    assert len(text) < 1_500_000


def test_hostile_names_stay_text(predicted: ReportData) -> None:
    figures = hostile(predicted)
    found = Page(page(figures))
    assert not [tag for tag, given in found.tags if tag == "img" or any(name.startswith("on") for name in given)]
    assert "".join(found.text).count(HOSTILE) > 8
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 3
    chart = json.loads(found.scripts[0])["confusion"]
    assert printable(HOSTILE) == chart["data"]["values"][0]["domain"]
    assert "55433" not in "".join(found.text)  # long enough not to be in a digest


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
    assert (figures.routing, figures.overlap, figures.curves, figures.made) == (None, (), (), None)
    assert [member.ref for member in figures.members] == [None, None]
    assert any("not registered here" in note for note in figures.notes)
    assert "not registered here" in "".join(Page(page(figures)).text)


@pytest.mark.check
def test_dense_models_and_one_expert_have_reports_too(world: tuple[Registry, Path], tmp_path: Path) -> None:
    registry, _ = world
    registry.compose(["code", "german"], tmp_path / "dense", Recipe(to="dense"))
    registry.compose(["code"], tmp_path / "one")
    for name in ("dense", "one"):
        figures = registry.report(tmp_path / name)
        assert Page(page(figures)).tags
    assert registry.report(tmp_path / "dense").routing is None
    assert "1 active per token" in page(registry.report(tmp_path / "one"))
    assert "active per token" not in page(registry.report(tmp_path / "dense"))


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
def test_command(world: tuple[Registry, Path], tmp_path: Path) -> None:
    registry, moe = world
    words = ["--home", str(registry.home.path), "report", str(moe)]
    out = tmp_path / "report.html"

    def run(*more: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*words, *more])
        assert result.exit_code == code, result.output
        return result.output

    assert f"wrote {out}" in run("--out", str(out))
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "or replace it: --force" in run("--out", str(out), code=1)
    run("--out", str(out), "--force")
    assert json.loads(run("--json"))["name"] == "moe"
    assert "give --out FILE, or --json" in run(code=2)
    assert "is not a folder" in run("--out", str(tmp_path / "no" / "report.html"), code=1)
