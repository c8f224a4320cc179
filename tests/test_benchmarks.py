"""Proves: `make bench` runs every script that measures speed, and its table tells what could not be measured."""

import json
import re
from math import exp
from random import Random
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.alternating import HEADER, MOST_ROUNDS, Comparison, Run, alternate, once
from benchmarks.bench import BENCHMARKS, MACHINES, Measured, page
from benchmarks.compose_scaling import SERIES, TRUNKS, figure
from benchmarks.context_cost import RECIPES, REFERENCES, table
from benchmarks.first_output import CALLS
from benchmarks.many_members import RECIPES as MANY
from benchmarks.many_members import figure as curves
from benchmarks.papers import mergeme
from benchmarks.papers.bench import DUME, GENERAL, NEAR, averaged, kept
from benchmarks.papers.findings import FINDINGS
from benchmarks.papers.flexolmo import WHOLE, active, without
from benchmarks.papers.page import page as papers_page
from benchmarks.papers.tables import Side, difference, verdict
from benchmarks.real.measure import interval, scores, wilson
from benchmarks.real.rows import DUME as PUBLISHED
from benchmarks.real.skills import SKILLS
from benchmarks.training_growth import Growth, Point
from benchmarks.training_growth import page as training_page
from cli.command_names import COMMANDS
from registry.evaluation.results import DomainLoss, Row
from tests.running import ROOT

FOLDER = ROOT / "benchmarks"


def test_every_script_and_command_is_measured_once() -> None:
    measuring = {path.stem for path in FOLDER.glob("*.py") if "\ndef measure(scratch: Path)" in path.read_text()}
    assert set(BENCHMARKS) == measuring
    assert all(set(machine.names) <= measuring for machine in MACHINES.values())
    assert CALLS.keys() == COMMANDS.keys()


def test_rows_have_the_columns_of_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Comparison("a claim", (3.0,), (2.0,), 1.0)
    fast = Comparison("a claim", (1.0, 2.0, 3.0), (2.0, 2.0, 2.0), 1.0, ours_peak=10**6, other_peak=2 * 10**6)
    missing = Comparison.missing("a claim", "there is nothing", 0.5)
    reached = {fast: True, slow: False, Comparison("a claim", (3.0,), (2.0,)): None, missing: None}
    for comparison, whether in reached.items():
        assert comparison.reached is whether
        assert comparison.row().count("|") == HEADER.splitlines()[0].count("|")
        assert Comparison.from_dict(json.loads(json.dumps(comparison.to_dict()))) == comparison
    with pytest.raises(ValueError, match="0 and 0 runs are no rounds"):
        Comparison("a claim", (), ())
    monkeypatch.setenv(MOST_ROUNDS, "2")
    assert len(alternate("a claim", lambda: None, lambda: None, 9).ours) == 2


def test_page_has_a_table_for_each_machine_a_figure_and_what_failed() -> None:
    rows = [
        Comparison(
            f"compose against `cp -r` and `sync`, by {series}, trunk {trunk}",
            (1.0 + number, 1.2 + number),
            (0.5, 0.6),
            note=f"{point.experts} experts, H = {point.hidden:,}, {0.1 * (number + 1):.2f} GB",
        )
        for series, points in SERIES.items()
        for number, point in enumerate(points)
        for trunk in TRUNKS
    ]
    panels = ElementTree.fromstring(figure(rows)).findall("{*}g")
    assert [len(panel.findall("{*}polyline")) for panel in panels] == [3] * len(SERIES)
    assert [len(panel.findall("{*}circle")) for panel in panels] == [3 * len(points) for points in SERIES.values()]
    good, bad = Measured([Comparison("a claim", (1.0,), (2.0,), 0.6)], 90), Measured("no disk", 30)
    text = page({"as-it-is": {"gram": good, "compose_scaling": Measured(rows, 60)}, "avx2": {"gram": bad}})
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [machine.title for machine in MACHINES.values()]
    assert "1 of 1 targets are reached. All of it took 3 min." in text
    assert "`ATEN_CPU_CAPABILITY=avx2`, `ONEDNN_MAX_CPU_ISA=AVX2`" in text
    assert "REG_BENCH" not in text
    assert "`gram` gave nothing: no disk" in text
    assert "compose_time.svg" in text


def test_scores_of_many_members_are_drawn_with_their_intervals() -> None:
    rows = [
        {"members": members, "recipe": recipe, "average": 98.0, "interval": [97.0, 99.0], "code": 95.0}
        for members in (4, 8)
        for recipe in MANY
    ]
    drawn = ElementTree.fromstring(curves(rows))
    classes = [element.get("class", "") for element in drawn.iter()]
    assert sum("mark-area" in name for name in classes) == len(MANY)
    assert sum("mark-line" in name for name in classes) == 2 * len(MANY)
    assert all(recipe in "".join(drawn.itertext()) for recipe in MANY)


def test_cost_of_context_routing_is_compared_with_both_references() -> None:
    seconds = {name: [1.0 + number, 2.0 + number] for number, name in enumerate(RECIPES)}
    header, _, row, *ratios, size = table("a set", {"prefill, s": seconds, "layers": dict.fromkeys(RECIPES, 6)})
    assert {line.count("|") for line in (header, row, *ratios, size)} == {len(RECIPES) + 2}
    assert [line.split(" | ")[0] for line in ratios] == [f"| – against {name}" for name in REFERENCES]
    assert "| 1.5 | 2.5 | 3.5 |" in row
    assert "|  | 1.75 (1.50–2.00) |" in ratios[0]


def test_tables_of_papers_are_those_of_the_figures_beside_them() -> None:
    record = json.loads((FOLDER / "PAPERS.json").read_text(encoding="utf-8"))
    assert papers_page(record) == (FOLDER / "PAPERS.md").read_text(encoding="utf-8")


def row(name: str, shift: float, domains: tuple[str, ...] = ("code", "math")) -> Row:
    """Return a row whose 40 windows of 10 tokens lose 3 nats a token, ± 1 by window, and `shift`."""
    nats = tuple(10 * (3 + shift + (-1) ** number) for number in range(40))
    losses = {domain: DomainLoss(nats, (10,) * 40) for domain in domains}
    return Row(name, {domain: loss.perplexity for domain, loss in losses.items()}, {}, losses=losses)


def test_difference_of_papers_rows_is_paired_by_window_and_judged_in_three_ways() -> None:
    noisy = row("noisy", 0.0)
    uneven = tuple(nats + (5 if number % 4 else -15) for number, nats in enumerate(noisy.losses["code"].nats))
    noisy.losses["code"] = DomainLoss(uneven, noisy.losses["code"].tokens)
    rows = [row("base", 0.0), row("better", -0.1), noisy, averaged([row("base", 0.0), row("base", 0.2)])]
    names = ("base", "better", "noisy", "mean")
    found = {"part": kept(dict(zip(names, rows, strict=True))), "old": {"rows": {"base": {}}}}
    found = json.loads(json.dumps(found))
    base, better, wide, mean = (Side(name, "part", name) for name in names)
    known = difference(found, better, base)
    assert known is not None
    assert known == pytest.approx((100 * (exp(-0.1) - 1),) * 3, abs=0.01)  # what both lose alike cancels
    assert difference(found, mean, base) == pytest.approx((100 * (exp(0.1) - 1),) * 3, abs=0.01)
    spread = difference(found, wide, base)
    assert spread is not None
    assert spread.low < 0 < spread.high
    assert difference(found, wide, base, ["math"]) == (0.0, 0.0, 0.0)
    assert difference(found, base, Side("", "old", "base")) is None
    worse = difference(found, base, better)
    assert [verdict(several) for several in ([known], [known, worse], [known, spread], [known, None])] == [
        *("yes", "no", "within noise", "–"),
    ]


def test_page_of_papers_says_what_experts_learned_and_judges_what_is_there() -> None:
    assert DUME == PUBLISHED
    experts = {"base model": row("base", 0.3), "expert code": row("code", 0.0), "expert math": row("math", 0.2)}
    mixtures = {"DUME": row("DUME", 0.1), "DUME+": row("DUME+", 0.1), "oracle": row("oracle", 0.0)}
    size = dict.fromkeys(("tokens", "windows", "batch", "lr", "mixed_batch", "mixed_lr", "steps", "seeds"), 1)
    part = {"scores": {"DUME": {"average": 90.0}}, "spread": {}, "size": size, **kept(mixtures)}
    parts = {"near-frozen": {"size": size, **kept(experts)}, "dume": part}
    text = papers_page({"machine": "here", "parts": parts})
    gains = r"^\| frozen \| .*: 25.9 % \| .*: 9.5 % \| 18.1 % \| 1 of 2 \|$"
    assert re.search(gains, text, re.MULTILINE)
    assert text.count("Experts trained here have read") == 1
    parts["dume"]["size"] = size | {"windows": 2}
    assert papers_page({"machine": "here", "parts": parts}).count("Experts trained here have read") == 2
    assert text.index("What the experts learned") < text.index("What the papers find")
    verdicts = re.findall(r"^\| DUME, Table 2 \| (.*?) \| .* \| (.*?) \|$", text, re.MULTILINE)
    assert verdicts == [("router training (DUME+) gains a little", "within noise"), ("the oracle above DUME", "yes")]
    assert papers_page({"machine": "here", "parts": {}}).count("## ") == 0
    everywhere = (*NEAR, GENERAL)
    left_out = {without(domain): row(domain, 0.0, everywhere) for domain in NEAR}
    for domain in NEAR:
        left_out[without(domain)].losses[domain] = row(domain, 0.1).losses["code"]
    counts = {active(count): row("", -0.01 * min(count, 3), everywhere) for count in range(1, 7)}
    opt_out = {"size": size, **kept({WHOLE: row(WHOLE, 0.0, everywhere), **left_out, **counts})}
    text = papers_page({"machine": "here", "parts": {"opt-out": opt_out}})
    assert text.count("| +10.52 % [+10.52, +10.52] | +0.00 % [+0.00, +0.00] |") == len(NEAR)
    verdicts = re.findall(r"^\| FlexOlmo, (.*?) \| .* \| (.*?) \|$", text, re.MULTILINE)
    assert verdicts == [("Fig. 3", "within noise"), ("Fig. 4", "yes")]
    assert len({(one.source, one.states) for one in FINDINGS}) == len(FINDINGS)


def test_slopes_of_training_are_those_of_what_was_measured() -> None:
    def point(weights: int, experts: int) -> Point:
        """Return 300 MB, 16 bytes a weight, 28 with a saved state, 5 kB and 2 ps per weight a token."""
        bare, tokens = 300 * 10**6 + 16 * weights, 500
        few, saving = Run(9, bare, 1.0), Run(9, bare + 12 * weights, 1.0)
        many = Run(9, bare + 5000 * tokens, 1.0 + 2e-12 * 3 * tokens * weights)
        return Point("train", experts, weights, weights, few, many, 3 * tokens, tokens, saving)

    growth = Growth(point(10**7, 2), point(4 * 10**7, 2), point(7 * 10**7, 4))
    assert growth.line(4e-12) == "| train | 16.0 | 28.0 | 16.0 | 300 | 5 | 0.50 | 1.00 |"
    alone = Point("audit", 0, 10**7, 10**7, Run(9, 4 * 10**8, 1.0), Run(9, 4 * 10**8, 2.0), 100, 0)
    grown = Point("audit", 0, 4 * 10**7, 4 * 10**7, Run(9, 4 * 10**8, 1.0), Run(9, 4 * 10**8, 5.0), 100, 0)
    text = training_page([growth, Growth(alone, grown)], 240)
    columns = [line.count("|") - 1 for line in text.splitlines() if line.startswith("|")]
    assert columns == [8] * 4 + [6] * 7  # two heads of two lines, two commands, five points
    assert re.search(r"^\| audit \| 0.0 \| – \| – \| 400 \| – \| [\d.]+ \| 1.00 \|$", text, re.MULTILINE)
    assert "All of it took 4 min of processor time" in text


def test_processor_time_of_a_command_is_not_its_wall_time() -> None:
    found = once(["sleep", "0.2"])
    assert found.seconds >= 0.2
    assert found.processor is not None
    assert 0 < found.processor < 0.2


def test_skills_ask_for_what_training_did_not_show() -> None:
    for name, make in SKILLS.items():
        training, test = make(Random(name))
        assert make(Random(name)) == (training, test)
        shown = {question for question, _ in training}
        assert len(shown) == len(training) >= 150
        assert len(test) >= 90
        assert not shown & {question for question, _ in test}
        assert {answer for _, answer in test} <= {answer for _, answer in training} or name == "change"
    trained, asked = ({question.rpartition(" ")[2] for question, _ in part} for part in SKILLS["continents"](Random(0)))
    assert not trained & asked - {"to?"}


def test_an_interval_of_equal_models_holds_nothing_else() -> None:
    best = {"code": [1.0, 2.0, 3.0], "law": [2.0, 2.5]}
    worse = {name: [loss + 0.1 for loss in losses] for name, losses in best.items()}
    assert scores(best, best) == {"code": 100.0, "law": 100.0}
    assert interval(best, best) == (100.0, 100.0)
    assert interval(best, best, worse) == pytest.approx((100 - 100 * exp(-0.1),) * 2, rel=1e-5)
    assert wilson(0, 50)[0] == pytest.approx(0.0, abs=1e-9)
    low, high = wilson(25, 50)
    assert low == pytest.approx(36.6, abs=0.1)
    assert low + high == pytest.approx(100.0)


def test_task_vectors_are_compared_by_block_and_layer_and_shares_by_domain() -> None:
    keys = [f"model.layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("self_attn.q_proj", "mlp.up_proj")]
    base = {key: torch.ones(2, dtype=torch.bfloat16) for key in (*keys, "lm_head.weight")}
    along = {key: base[key] + torch.tensor([1.0, 0.0]) for key in keys}
    turned = {key: base[key] + torch.tensor([3.0, 4.0] if "self_attn" in key else [0.0, 2.0]) for key in keys}
    found = mergeme.similarity(base, [along, turned, along])
    assert found == {"attention": pytest.approx([(0.6 + 1 + 0.6) / 3] * 2), "MLP": pytest.approx([1 / 3] * 2)}
    assert list(mergeme.similarity_section({"task-vectors": {"similarity": found}}))[-1] == "| 1 | 0.733 | 0.333 |"
    own = {row: {"code": {"code": 0.75, "public": 0.25}} for row in (mergeme.SEPARATE, *mergeme.RIDGE.values())}
    lines = list(mergeme.section({"mergeme": {"scores": {"DUME": {"code": 90.0}}, "shares": own}}))
    assert lines[-2:] == ["| perplexity | code | 75 | 25 |", "| ridge | code | 75 | 25 |"]
    assert {*own, f"{mergeme.DIAGONALS}, prompt-perplexity"} <= set(mergeme.rows())
