"""Proves: the score of an accuracy is 100 · p / p̂ of result files of lm_eval, and a file that gives none is refused.

Files are in the form that lm_eval 0.4 writes; every refusal names the file and what to give instead.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from registry.errors import IncompatibleError, InvalidInputError
from registry.evaluation import AccuracyRow, accuracy_scores

GSM8K = {
    "alias": "gsm8k",
    "exact_match,strict-match": 0.5,
    "exact_match_stderr,strict-match": 0.01,
    "exact_match,flexible-extract": 0.8,
    "exact_match_stderr,flexible-extract": "N/A",
    "sample_len": 1319,
}


def results(path: Path, tasks: Mapping[str, Mapping[str, Any]], **more: Any) -> Path:
    """Write a result file as lm_eval does, with what it says besides figures."""
    document = {
        "results": tasks,
        "versions": dict.fromkeys(tasks, 1.0),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {
            task: {key.partition(",")[0]: True for key in figures if "," in key} for task, figures in tasks.items()
        },
        "n-samples": {task: {"original": 100, "effective": 100} for task in tasks},
        "config": {"model": "hf", "limit": None},
        "model_name": "moe/",
    }
    path.write_text(json.dumps(document | more))
    return path


def acc(value: object, name: str = "acc") -> dict[str, Any]:
    return {"alias": " - x", f"{name},none": value, f"{name}_stderr,none": 0.1}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[Path]]:
    """Two experts with results of their own tasks, a base model and a composition with those of all."""
    everything = {
        "gsm8k": GSM8K | {"exact_match,strict-match": 0.4},
        "svamp": acc(0.3),
        "humaneval": acc(0.6, "pass@1"),
    }
    base = {"gsm8k": GSM8K | {"exact_match,strict-match": 0.1}, "svamp": acc(0), "humaneval": acc(0.2, "pass@1")}
    return {
        "base": [results(tmp_path / "base.json", base)],
        "math": [
            results(tmp_path / "gsm8k.json", {"gsm8k": GSM8K}),
            results(tmp_path / "svamp.json", {"svamp": acc(0.6)}),
        ],
        "code": [results(tmp_path / "code.json", {"humaneval": acc(0.75, "pass@1")})],
        "moe": [results(tmp_path / "moe.json", everything)],
    }


TASKS = {"math": ["gsm8k:exact_match,strict-match", "svamp"], "code": ["humaneval:pass@1"]}


def by_name(rows: tuple[AccuracyRow, ...]) -> dict[str, AccuracyRow]:
    return {row.name: row for row in rows}


def test_score_is_a_hundred_times_the_accuracy_over_that_of_the_own_expert(files: dict[str, list[Path]]) -> None:
    rows = by_name(accuracy_scores(files, TASKS))
    assert list(rows) == list(files)
    assert rows["moe"].accuracy == {"math": {"gsm8k": 0.4, "svamp": 0.3}, "code": {"humaneval": 0.6}}
    assert rows["moe"].score == {"math": 100 * (0.4 / 0.5 + 0.3 / 0.6) / 2, "code": 100 * (0.6 / 0.75)}
    assert rows["moe"].average == (100 * (0.4 / 0.5 + 0.3 / 0.6) / 2 + 100 * (0.6 / 0.75)) / 2
    assert rows["base"].accuracy["math"]["svamp"] == 0.0  # a whole number in the file
    assert rows["math"].score == {"math": 100.0}
    assert (rows["math"].average, rows["code"].average) == (None, None)  # each was measured on its own domain alone
    assert rows["moe"].metric == {
        "math": {"gsm8k": "exact_match,strict-match", "svamp": "acc,none"},
        "code": {"humaneval": "pass@1,none"},
    }
    complete = files | {"math": files["moe"], "code": [*files["code"], *files["math"]]}
    rows = by_name(accuracy_scores(complete, TASKS))
    assert rows["moe"].score["math"] == rows["math"].score["math"] == 100.0
    assert rows["code"].score["math"] == 100 * (0.5 / 0.4 + 0.6 / 0.3) / 2


def refused(files: Mapping[str, Any], tasks: Mapping[str, Any]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        accuracy_scores(files, tasks)
    assert caught.value.hint
    return f"{caught.value.message} | {caught.value.hint}"


def test_metric_must_be_one(files: dict[str, list[Path]], tmp_path: Path) -> None:
    files = {"math": files["math"]}
    metrics = "'exact_match,strict-match', 'exact_match,flexible-extract'"
    for metric in ("", ":exact_match"):
        told = refused(files, {"math": [f"gsm8k{metric}"]})
        assert f"gsm8k.json: gsm8k has several metrics: {metrics}" in told
        assert "--task 'math=gsm8k:exact_match,strict-match'" in told
    assert "gsm8k has no metric 'acc': it has 'exact_match,strict-match'" in refused(files, {"math": ["gsm8k:acc"]})
    assert "no metric 'acc_stderr'" in refused(files, {"math": ["svamp:acc_stderr"]})  # a deviation is no accuracy
    old = results(tmp_path / "old.json", {"gsm8k": {"acc": 0.3, "acc_stderr": 0.1}})
    assert "old.json: gsm8k has no metric |" in refused({"math": [old]}, {"math": ["gsm8k"]})
    other = results(tmp_path / "other.json", {"svamp": acc(0.5, "exact_match")})
    told = refused(files | {"moe": [other]}, {"math": ["svamp"]})
    assert "other.json: svamp has no metric 'acc,none', in which math's expert was measured" in told


def test_task_and_expert_must_be_there_once(files: dict[str, list[Path]]) -> None:
    other, twice = {"math": files["math"], "moe": files["code"]}, files | {"math": files["math"] * 2}
    known = "the results of math have no task 'gsm8': they have 'gsm8k', 'svamp'; did you mean 'gsm8k'?"
    cases: list[tuple[dict[str, list[Path]], dict[str, list[str]], str]] = [
        (files, {"math": ["gsm8"]}, known),
        (other, {"math": ["svamp"]}, "the results of moe have no task 'svamp'"),
        (files, {"maths": ["svamp"]}, "no results of maths's own expert"),
        (files, {"maths": ["svamp"]}, "give --accuracy maths=FILE; did you mean 'math'?"),
        (twice, {"math": ["svamp"]}, "both have results of svamp for math"),
        (files, {"math": ["svamp", "svamp:acc"]}, "task svamp of math is given twice"),
        (files, {}, "there is no task"),
        (files, {"math": []}, "there is no task"),
    ]
    for given, tasks, told in cases:
        assert told in refused(given, tasks)


def test_values_that_are_no_accuracies_are_refused(tmp_path: Path) -> None:
    for value, reason in (
        (1.5, "it is 1.5, not in"),
        (-0.5, "not in"),
        (True, "has no metric"),
        ("0.5", "has no metric"),
    ):
        path = results(tmp_path / "a.json", {"t": acc(value)})
        assert reason in refused({"math": [path]}, {"math": ["t"]})
    zero = results(tmp_path / "zero.json", {"svamp": acc(0.0)})
    assert "'acc,none' of svamp is 0 for math's own expert" in refused({"math": [zero]}, {"math": ["svamp"]})
    lower = results(tmp_path / "brier.json", {"t": acc(0.3, "brier")}, higher_is_better={"t": {"brier": False}})
    assert "'brier,none' of t is no accuracy: lower is better" in refused({"math": [lower]}, {"math": ["t"]})


def test_tasks_done_under_other_conditions_are_not_compared(files: dict[str, list[Path]], tmp_path: Path) -> None:
    half = {"original": 100, "effective": 50}
    for key, value, told in (
        ("n-shot", 5, "shots 5 in"),
        ("versions", 2.0, "version 2.0 in"),
        ("n-samples", half, f"samples {half} in"),
    ):
        other = results(tmp_path / "other.json", {"svamp": acc(0.5)}, **{key: {"svamp": value}})
        with pytest.raises(IncompatibleError, match="svamp of moe and of math cannot be compared") as caught:
            accuracy_scores({"math": files["math"], "moe": [other]}, {"math": ["svamp"]})
        assert told in caught.value.message
        silent = results(tmp_path / "silent.json", {"svamp": acc(0.5)}, **{key: {}})
        rows = accuracy_scores({"math": files["math"], "moe": [silent]}, {"math": ["svamp"]})
        assert by_name(rows)["moe"].average


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is not JSON"),
        (b"{}", "holds no results of lm-evaluation-harness"),
        (b'{"results": []}', "holds no results of lm-evaluation-harness"),
        (b'{"results": {"t": 0.5}}', "holds no results of lm-evaluation-harness"),
        (b'{"results": {"t": {"acc,none": 0.5}}, "n-shot": 5}', "holds no results of lm-evaluation-harness"),
        (b'{"results": {"t": {"acc,none": NaN}}}', "NaN is not a number of JSON"),
        (b'{"results": ' + b"[" * 5000, "nested deeper"),
        (b"x" * (16 * 2**20 + 1), "more than"),
    ],
)
def test_file_that_lm_eval_did_not_write_is_refused(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(data)
    message = refused({"math": [path]}, {"math": ["t"]})
    assert told in message
    assert "results_*.json" in message
    assert "is not a regular file" in refused({"math": [tmp_path]}, {"math": ["t"]})


def test_command_prints_the_same_figures_in_every_form(files: dict[str, list[Path]]) -> None:
    words = ["scores"]
    words += [word for name, paths in files.items() for path in paths for word in ("--accuracy", f"{name}={path}")]
    words += [word for domain, tasks in TASKS.items() for task in tasks for word in ("--task", f"{domain}={task}")]

    def run(*more: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*words, *more])
        assert result.exit_code == code, result.output
        return result.output

    rows = accuracy_scores(files, TASKS)
    assert json.loads(run("--json")) == [row.document() for row in rows]
    lines = run().splitlines()
    assert "math: gsm8k (exact_match,strict-match)" in lines[0]
    assert lines[4].split() == ["moe", "40.0%", "30.0%", "60.0%"]
    assert lines[-1].split() == ["moe", "65.00", "80.00", "72.50"]
    *_, last = run("--csv").splitlines()
    assert last == f"moe,0.4,0.3,0.6,{rows[-1].score['math']},80.0,{rows[-1].average}"
    assert run("--markdown").startswith("| accuracy |")
    assert "not of the form NAME=FILE" in run("--accuracy", "math", code=2)


def test_names_of_files_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    path = results(tmp_path / "a.json", {"t": {"acc\x1b[31m,none": 0.5}})
    result = CliRunner().invoke(main, ["scores", "--accuracy", f"a={path}", "--task", "a=t"])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert "\\x1b" in result.stdout
