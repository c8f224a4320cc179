"""Proves: figures are printed as text, Markdown, CSV and JSON alike, and `reg show` tells those of a composition."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from cli.score_tables import Table, print_tables, ranking_of, tables_of, wide_table
from registry import Registry
from registry.evaluation import Continual, Row, Spread
from tests.conftest import Zoo

Run = Callable[..., Result]
SMALL = ("--windows", 1, "--seq-len", 32)


@pytest.fixture
def run(filled: Registry) -> Run:
    """Return a function that runs `reg --home … ARGS` on a filled registry and expects success, or exit `code`."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return invoke


def text(zoo: Zoo, *names: str) -> list[object]:
    return [*SMALL, *(word for name in names for word in ("--data", f"{name}={zoo.test[name]}"))]


def read_csv(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


@pytest.mark.check
def test_forms_hold_the_same_figures(run: Run, zoo: Zoo, tmp_path: Path) -> None:
    run("compose", "--experts", "code,math", "--out", tmp_path / "moe")
    words = ["evaluate", tmp_path / "moe", *text(zoo, "code", "math"), "--oracle"]
    plain = run(*words).stdout
    moe, oracle = json.loads(run(*words, "--json").stdout)
    lines = read_csv(run(*words, "--csv").stdout)
    markdown = run(*words, "--markdown").stdout
    assert [line["model"] for line in lines] == ["moe", "moe oracle"] == [moe["name"], oracle["name"]]
    assert float(lines[0]["score code"]) == moe["score"]["code"]
    assert float(lines[1]["score mean"]) == oracle["average"]
    assert float(lines[0]["load math"]) == moe["overall_load"]["math"]
    assert lines[1]["load math"] == ""
    assert int(lines[0]["active parameters"]) == moe["active_parameters"]
    titles = ["perplexity", "normalised score", "routing accuracy", "load", "parameters"]
    found = [line.strip("| ").split(" | ")[0] for line in markdown.splitlines()]
    assert [line for line in found if line in titles] == titles
    assert f"| moe | {moe['score']['code']:.2f} | {moe['score']['math']:.2f} | {moe['average']:.2f} |" in markdown
    assert f"moe         {moe['overall_accuracy']['code']:.1%}" in plain.replace("moe               ", "moe         ")
    assert "exclude one another" in run(*words, "--json", "--csv", code=2).stderr


@pytest.mark.check
def test_methods_stand_side_by_side(run: Run, zoo: Zoo) -> None:
    table = run("evaluate", "--experts", "code,math", "--methods", "base,oracle, regmean", *text(zoo, "code", "math"))
    first = [line.split()[0] for line in table.stdout.splitlines() if line]
    assert first[:5] == ["perplexity", "base", "oracle", "regmean", "(tokens)"]
    told = run("evaluate", "--experts", "code", "--methods", "nonsense", *text(zoo, "code"), code=1).stderr
    assert "error: method 'nonsense' is not one of base, experts, average, " in told
    assert "--experts and --methods go together" in run("evaluate", "--experts", "a", *text(zoo, "code"), code=2).stderr
    told = run("evaluate", "moe", *text(zoo, "code"), "--sweep", "lam=0.1,1", code=2).stderr
    assert "--sweep composes experts once for each value, and changes no FOLDER" in told
    assert "--methods" not in told
    assert "give a FOLDER" in run("evaluate", *text(zoo, "code"), code=2).stderr


@pytest.mark.check
def test_active_experts_are_rows_and_shown_with_the_composition(run: Run, zoo: Zoo, tmp_path: Path) -> None:
    run("compose", "--experts", "code,math", "--out", tmp_path / "moe")
    words = ["evaluate", tmp_path / "moe", *text(zoo, "code", "math"), "--active-experts"]
    rows = json.loads(run(*words, "all", "--json").stdout)
    assert [row["name"] for row in rows] == ["moe", "moe top-1", "moe top-2"]
    lines = read_csv(run(*words, "2,1", "--csv").stdout)
    assert [int(line["active parameters"]) for line in lines[1:]] == [row["active_parameters"] for row in rows[1:]]
    (made,) = json.loads(run("compositions", "--json").stdout)
    line = f"mean score by experts per token  1: {rows[1]['average']:.2f}, 2: {rows[2]['average']:.2f}"
    assert line in run("show", made["digest"]).stdout.splitlines()
    for wrong in ("0", "1,x", "-1", "²", "1e3", "all,1"):
        assert "is not all, nor a list of numbers" in run(*words, wrong, code=2).stderr
    assert "moe has 2" in run(*words, "3", code=1).stderr
    methods = ["evaluate", "--experts", "code", "--methods", "base", *text(zoo, "code")]
    assert "--active-experts needs a FOLDER" in run(*methods, "--active-experts", "1", code=2).stderr
    assert "--seeds goes with --methods" in run(*words, "1", "--seeds", 2, code=2).stderr


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


@pytest.mark.check
def test_interval_of_the_mean_is_a_column(run: Run, zoo: Zoo, tmp_path: Path) -> None:
    run("compose", "--experts", "code,math", "--out", tmp_path / "moe")
    data = [word for name in ("code", "math") for word in ("--data", f"{name}={zoo.test[name]}")]
    words = ["evaluate", tmp_path / "moe", *data, "--windows", 3, "--seq-len", 32]
    (row,) = json.loads(run(*words, "--json").stdout)
    low, high = row["average_interval"]
    assert low < row["average"] < high
    lines = [line.split("  ") for line in run(*words).stdout.splitlines()]
    assert any(line[-1] == "95% interval" for line in lines)
    assert any(line[-1] == f"{low:.2f} to {high:.2f}" for line in lines)
    (line,) = read_csv(run(*words, "--csv").stdout)
    assert [float(line["score mean low"]), float(line["score mean high"])] == [low, high]
    assert [float(line["score code low"]), float(line["score code high"])] == row["interval"]["code"]
    (made,) = json.loads(run("compositions", "--json").stdout)
    assert f"{low:.2f} to {high:.2f}" in run("show", made["digest"]).stdout
    one = ["evaluate", tmp_path / "moe", *text(zoo, "code", "math")]  # one window has no interval
    assert "95% interval" not in run(*one).stdout


def test_markdown_escapes_what_would_part_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([Table(("a|b", "c"), [("x", "1")])], as_markdown=True)
    assert capsys.readouterr().out.splitlines() == ["| a\\|b | c |", "| --- | ---: |", "| x | 1 |"]


@pytest.mark.check
def test_show_tells_a_composition_and_what_was_found_of_it(run: Run, zoo: Zoo, tmp_path: Path) -> None:
    run("compose", "--experts", "code,math", "--trunk", "base", "--out", tmp_path / "moe")
    (made,) = json.loads(run("compositions", "--json").stdout)
    words = ["evaluate", tmp_path / "moe", *text(zoo, "code", "math")]
    run(*words, "--oracle")
    (row,) = json.loads(run("evaluate", tmp_path / "moe", *text(zoo, "code"), "--json").stdout)
    shown = json.loads(run("show", made["digest"][:10], "--json").stdout)
    assert {key: shown[key] for key in made} == made
    assert [len(e["data"]) for e in shown["evaluations"]] == [1, 2]
    assert shown["evaluations"][0]["figures"] == row
    printed = run("show", made["digest"]).stdout
    told = dict(line.split(maxsplit=1) for line in printed.split("\n\n")[0].splitlines())
    assert told["composition"] == made["digest"][:12]
    assert (told["members"], told["base"], told["trunk"]) == ("code@1,math@1", "base@1", "base")
    assert told["folder"] == str(tmp_path / "moe")
    assert printed.count("evaluated ") == 2
    assert f"{row['score']['code']:.2f}" in printed
    assert "extraction audit" not in printed
    assert "there is no composition and no expert 'abcdef'" in run("show", "abcdef", code=1).stderr


def test_show_prints_the_audits_of_a_composition(run: Run, zoo: Zoo, tmp_path: Path) -> None:
    run("compose", "--experts", "code,math", "--trunk", "base", "--out", tmp_path / "moe")
    (made,) = json.loads(run("compositions", "--json").stdout)
    words = ["audit-extraction", tmp_path / "moe", "--data", zoo.test["math"], "--documents", 2, "--samples", 2]
    (found,) = json.loads(run(*words, "--prefix", 8, "--continued", 4, "--json").stdout)
    (audit,) = json.loads(run("show", made["digest"], "--json").stdout)["audits"]
    assert audit["extraction"] == {key: found[key] for key in ("extracted", "rate", "similarity", "most")}
    header, line = run("show", made["digest"]).stdout.split("\n\n")[-1].strip().splitlines()
    assert header.split()[:3] == ["extraction", "audit", "extracted"]
    (date,) = json.loads(run("show", made["digest"], "--json").stdout)["audits"]
    assert (header.split()[-1], line.split()[-1]) == ("date", date["evaluated_at"][:10])
    assert line.split()[:4] == ["math.test.jsonl", str(found["extracted"]), "of", "2"]
    assert line.split()[5:] == [
        f"{found['similarity']:.3f}",
        f"{found['most']:.3f}",
        "8",
        "4",
        date["evaluated_at"][:10],
    ]


@pytest.mark.check
def test_continual(run: Run, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["continual", "--schedule", "math,code", *text(zoo, "code", "math")]
    found = json.loads(run(*words, "--json").stdout)
    assert found["schedule"] == ["math", "code"]
    result = Continual(("math", "code"), found["perplexity"], found["score"])
    monkeypatch.setattr(Registry, "continual", lambda *_, **__: result)
    (first, second) = read_csv(run(*words, "--csv").stdout)
    assert (first["score after"], first["math"], first["code"], first["forgetting"]) == ("math", "100.0", "", "")
    assert float(second["forgetting"]) == found["forgetting"] == -found["backward_transfer"]
    assert float(second["mean"]) == found["average"] == sum(found["score"][1]) / 2
    header, one, two = run(*words).stdout.splitlines()
    assert header.split() == ["score", "after", "math", "code", "mean", "forgetting", "backward", "transfer"]
    assert one.split() == ["math", "100.00", "100.00"]
    assert two.split()[:2] == ["code", f"{found['score'][1][0]:.2f}"]
    assert run(*words, "--markdown").stdout.startswith("| score after | math | code |")


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
def test_ranking_of_folders_has_the_interval_of_the_distance(run: Run, zoo: Zoo, tmp_path: Path) -> None:
    run("compose", "--experts", "code,math", "--out", tmp_path / "moe")
    run("compose", "--experts", "code,math", "--to", "dense", "--out", tmp_path / "dense")
    data = [word for name in ("code", "math") for word in ("--data", f"{name}={zoo.test[name]}")]
    words = ["--windows", 3, "--seq-len", 32, *data]
    *_, header, first, second = run("evaluate", tmp_path / "moe", tmp_path / "dense", *words).stdout.splitlines()
    assert header.split() == ["rank", "model", "mean", "behind", "95%", "interval"]
    assert first.split()[:2] == ["1", "moe"]
    assert len(first.split()) == 4  # the best one is behind none
    *_, behind, low, _, high = second.split()
    assert float(low) < float(behind) < float(high)
    assert "rank" not in run("evaluate", tmp_path / "moe", *words).stdout
