"""Proves: figures are printed as text, Markdown, CSV and JSON alike, and `reg show` tells those of a composition."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from cli.score_tables import Table, print_tables, ranking_of, tables_of, wide_table
from registry import Recipe, Registry
from registry.evaluation import Continual, Row, Spread
from tests.cli.conftest import Reg, some_text
from tests.conftest import Zoo


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["code", "math"], tmp_path / "moe")
    return tmp_path / "moe"


def read_csv(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


@pytest.mark.check
def test_forms_hold_the_same_figures(reg: Reg, zoo: Zoo, moe: Path) -> None:
    words = ("evaluate", moe, *some_text(zoo, "code", "math", windows=3), "--oracle")
    row, oracle = reg.json(*words)
    low, high = row["average_interval"]
    assert low < row["average"] < high
    first, second = read_csv(reg(*words, "--csv").stdout)
    assert [first["model"], second["model"]] == ["moe", "moe oracle"] == [row["name"], oracle["name"]]
    assert float(first["score code"]) == row["score"]["code"]
    assert float(second["score mean"]) == oracle["average"]
    assert [float(first["score mean low"]), float(first["score mean high"])] == [low, high]
    assert [float(first["score code low"]), float(first["score code high"])] == row["interval"]["code"]
    assert float(first["load math"]) == row["overall_load"]["math"]
    assert second["load math"] == ""
    assert int(first["active parameters"]) == row["active_parameters"]
    markdown = reg(*words, "--markdown").stdout
    titles = ["perplexity", "normalised score", "routing accuracy", "load", "parameters"]
    found = [line.strip("| ").split(" | ")[0] for line in markdown.splitlines()]
    assert [line for line in found if line in titles] == titles
    assert f"| moe | {row['score']['code']:.2f} | {row['score']['math']:.2f} | {row['average']:.2f} |" in markdown
    printed = reg(*words).stdout
    lines = [[part.strip() for part in line.split("  ") if part.strip()] for line in printed.splitlines()]
    assert ["moe", f"{row['overall_accuracy']['code']:.1%}"] in [line[:2] for line in lines]
    assert {"95% interval", f"{low:.2f} to {high:.2f}"} <= {line[-1] for line in lines if line}
    assert "rank" not in printed  # of one folder
    (made,) = reg.json("compositions")
    assert f"{low:.2f} to {high:.2f}" in reg("show", made["digest"]).stdout
    assert "exclude one another" in reg(*words, "--json", "--csv", code=2).stderr


@pytest.mark.check
def test_methods_stand_side_by_side(reg: Reg, zoo: Zoo) -> None:
    text = some_text(zoo, "code")
    both = some_text(zoo, "code", "math")
    table = reg("evaluate", "--experts", "code,math", "--methods", "base,oracle, regmean", *both).stdout
    first = [line.split()[0] for line in table.splitlines() if line]
    assert first[:5] == ["perplexity", "base", "oracle", "regmean", "(tokens)"]
    told = reg("evaluate", "--experts", "code", "--methods", "nonsense", *text, code=1).stderr
    assert "error: method 'nonsense' is not one of base, experts, average, " in told
    assert "--experts and --methods go together" in reg("evaluate", "--experts", "a", *text, code=2).stderr
    told = reg("evaluate", "moe", *text, "--sweep", "lam=0.1,1", code=2).stderr
    assert "--sweep composes experts once for each value, and changes no FOLDER" in told
    assert "--methods" not in told
    assert "give a FOLDER" in reg("evaluate", *text, code=2).stderr


@pytest.mark.check
def test_active_experts_are_rows_and_shown_with_the_composition(reg: Reg, zoo: Zoo, moe: Path) -> None:
    words = ("evaluate", moe, *some_text(zoo, "code", "math"), "--active-experts")
    rows = reg.json(*words, "all")
    assert [row["name"] for row in rows] == ["moe", "moe top-1", "moe top-2"]
    lines = read_csv(reg(*words, "2,1", "--csv").stdout)
    assert [int(line["active parameters"]) for line in lines[1:]] == [row["active_parameters"] for row in rows[1:]]
    (made,) = reg.json("compositions")
    line = f"mean score by experts per token  1: {rows[1]['average']:.2f}, 2: {rows[2]['average']:.2f}"
    shown = reg("show", made["digest"]).stdout
    assert line in shown.splitlines()
    assert "95% interval" not in shown  # one window has none
    for wrong in ("0", "1,x", "-1", "²", "1e3", "all,1"):
        assert "is not all, nor a list of numbers" in reg(*words, wrong, code=2).stderr
    assert "moe has 2" in reg(*words, "3", code=1).stderr
    methods = ("evaluate", "--experts", "code", "--methods", "base", *some_text(zoo, "code"))
    assert "--active-experts needs a FOLDER" in reg(*methods, "--active-experts", "1", code=2).stderr
    assert "--seeds goes with --methods" in reg(*words, "1", "--seeds", 2, code=2).stderr


def test_seeds_are_mean_and_deviation_in_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    spread = Spread(5, {"a": 0.5}, {"a": 1.25}, 1.25)
    rows = [Row("random", {"a": 7.0}, {"a": 77.0}, {"a": 10}, spread=spread), Row("fixed", {"a": 6.0}, {"a": 88.0})]
    print_tables(tables_of(rows, ["a"]))
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split(maxsplit=1)[1] == "7.00 ± 0.50"
    assert printed[6].split(maxsplit=1)[1] == "77.00 ± 1.25  77.00 ± 1.25"
    assert printed[7].split()[1:] == ["88.00", "88.00"]
    header, lines = wide_table(rows, ["a"])
    by_column: Any = dict(zip(header, lines[0], strict=True))
    assert (by_column["score a sd"], by_column["seeds"]) == ("1.25", "5")
    assert lines[1][list(header).index("seeds")] == ""


def test_markdown_escapes_what_would_part_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([Table(("a|b", "c"), [("x", "1")])], as_markdown=True)
    assert capsys.readouterr().out.splitlines() == ["| a\\|b | c |", "| --- | ---: |", "| x | 1 |"]


@pytest.mark.check
def test_show_tells_a_composition_and_what_was_found_of_it(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="base"))
    (made,) = reg.json("compositions")
    reg("evaluate", tmp_path / "moe", *some_text(zoo, "code", "math"), "--oracle")
    (row,) = reg.json("evaluate", tmp_path / "moe", *some_text(zoo, "code"))
    shown = reg.json("show", made["digest"][:10])
    assert {key: shown[key] for key in made} == made
    assert [len(e["data"]) for e in shown["evaluations"]] == [1, 2]
    assert shown["evaluations"][0]["figures"] == row
    printed = reg("show", made["digest"]).stdout
    told = dict(line.split(maxsplit=1) for line in printed.split("\n\n")[0].splitlines())
    assert told["composition"] == made["digest"][:12]
    assert (told["members"], told["base"], told["trunk"]) == ("code@1,math@1", "base@1", "base")
    assert told["folder"] == str(tmp_path / "moe")
    assert printed.count("evaluated ") == 2
    assert f"{row['score']['code']:.2f}" in printed
    assert "extraction audit" not in printed
    assert "there is no composition and no expert 'abcdef'" in reg("show", "abcdef", code=1).stderr

    words = ("audit-extraction", tmp_path / "moe", "--data", zoo.test["math"], "--documents", 2, "--samples", 2)
    (found,) = reg.json(*words, "--prefix", 8, "--continued", 4)
    (audit,) = reg.json("show", made["digest"])["audits"]
    assert audit["extraction"] == {key: found[key] for key in ("extracted", "rate", "similarity", "most")}
    header, line = reg("show", made["digest"]).stdout.split("\n\n")[-1].strip().splitlines()
    assert header.split()[:3] == ["extraction", "audit", "extracted"]
    assert header.split()[-1] == "date"
    assert line.split()[:4] == ["math.test.jsonl", str(found["extracted"]), "of", "2"]
    figures = [f"{found['similarity']:.3f}", f"{found['most']:.3f}", "8", "4", audit["evaluated_at"][:10]]
    assert line.split()[5:] == figures


@pytest.mark.check
def test_continual(reg: Reg, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("continual", "--schedule", "math,code", *some_text(zoo, "code", "math"))
    found = reg.json(*words)
    assert found["schedule"] == ["math", "code"]
    result = Continual(("math", "code"), found["perplexity"], found["score"])
    monkeypatch.setattr(Registry, "continual", lambda *_, **__: result)
    (first, second) = read_csv(reg(*words, "--csv").stdout)
    assert (first["score after"], first["math"], first["code"], first["forgetting"]) == ("math", "100.0", "", "")
    assert float(second["forgetting"]) == found["forgetting"] == -found["backward_transfer"]
    assert float(second["mean"]) == found["average"] == sum(found["score"][1]) / 2
    header, one, two = reg(*words).stdout.splitlines()
    assert header.split() == ["score", "after", "math", "code", "mean", "forgetting", "backward", "transfer"]
    assert one.split() == ["math", "100.00", "100.00"]
    assert two.split()[:2] == ["code", f"{found['score'][1][0]:.2f}"]
    assert reg(*words, "--markdown").stdout.startswith("| score after | math | code |")


def test_ranking_puts_the_best_first_and_leaves_out_what_has_no_average() -> None:
    rows = [Row(name, {"a": 2.0}, {"a": score}) for name, score in (("mean", 80.0), ("regmean", 90.0), ("base", 78.5))]
    (table,) = ranking_of([*rows, Row("none", {"a": 2.0}, {})])
    assert list(table.rows) == [
        ["1", "regmean", "90.00", "0.00"],
        ["2", "mean", "80.00", "10.00"],
        ["3", "base", "78.50", "11.50"],
    ]
    assert ranking_of(rows[:1]) == []


@pytest.mark.check
def test_ranking_of_folders_has_the_interval_of_the_distance(
    reg: Reg, filled: Registry, zoo: Zoo, moe: Path, tmp_path: Path
) -> None:
    filled.compose(["code", "math"], tmp_path / "dense", Recipe(to="dense"))
    told = reg("evaluate", moe, tmp_path / "dense", *some_text(zoo, "code", "math", windows=3)).stdout
    *_, header, first, second = told.splitlines()
    assert header.split() == ["rank", "model", "mean", "behind", "95%", "interval"]
    assert first.split()[:2] == ["1", "moe"]
    assert len(first.split()) == 4  # the best one is behind none
    *_, behind, low, _, high = second.split()
    assert float(low) < float(behind) < float(high)
