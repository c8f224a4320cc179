"""Accuracy form of the normalised score (DUME, §3.1), from result files of lm-evaluation-harness.

For a task, p is the accuracy of a model and p̂ that of the domain's own expert; the score is 100 · p / p̂. DUME has one
data set a domain: the mean over several is ours. The files are untrusted, and lm-evaluation-harness need not be
installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from registry.errors import CheckpointError, IncompatibleError, InvalidInputError
from registry.io.display import few, printable, quoted
from registry.io.untrusted import read_json
from registry.names.suggest import suggest
from registry.workspace import PathLike

RESULTS_HINT = "name the results_*.json that lm_eval 0.4 or later wrote to its --output_path"
CONDITIONS = {"n-shot": "shots", "versions": "version", "n-samples": "samples"}
"""Keys of a result file with the conditions of each task, which must be the same for all models, in our words."""
LISTED = 8  # most names in a message


@dataclass(frozen=True)
class AccuracyRow:
    """One model's accuracies p, domain → task → p in [0, 1], and its scores.

    Attributes:
        score: domain → 100 · p / p̂, mean over the domain's tasks, p̂ the accuracy of the domain's own expert.
    """

    name: str
    accuracy: dict[str, dict[str, float]]
    score: dict[str, float]
    metric: dict[str, dict[str, str]]  # domain → task → the metric in the files, as `acc,none`

    @property
    def average(self) -> float | None:
        """Mean score over the domains; None if one of them has none."""
        return fmean(self.score.values()) if len(self.score) == len(self.metric) else None

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return {**asdict(self), "average": self.average}


@dataclass(frozen=True)
class _Task:
    """A task of a domain; `metric` is empty if the files have only one."""

    domain: str
    name: str
    metric: str


@dataclass(frozen=True)
class _Result:
    """Figures of a task in one file: metric (`acc,none`) → value, and the conditions by `CONDITIONS`."""

    file: Path
    values: Mapping[str, float]
    lower_is_better: frozenset[str]
    conditions: Mapping[str, Any]


def accuracy_scores(
    files: Mapping[str, Sequence[PathLike]], tasks: Mapping[str, Sequence[str]]
) -> tuple[AccuracyRow, ...]:
    """Return accuracies and normalised scores of models, in the order of `files`.

    Args:
        files: a model's name → its result files. A domain's own expert has the domain's name; it needs results of that
            domain's tasks alone, any other model those of all.
        tasks: domain → its tasks, each `TASK` or `TASK:METRIC`. METRIC is as in the files, `exact_match` or
            `exact_match,strict-match`; it may be left out if they have only one.

    Raises InvalidInputError if something is missing, ambiguous or no accuracy, or an expert's is 0, IncompatibleError
    if two models did a task with other shots, in another version or on other samples.
    """
    wanted: list[_Task] = []
    for domain, text in ((domain, text) for domain, texts in tasks.items() for text in texts):
        name, _, chosen = text.partition(":")
        task = _Task(domain, name, chosen)
        if any((domain, name) == (other.domain, other.name) for other in wanted):
            raise InvalidInputError(
                f"task {task.name} of {task.domain} is given twice",
                f"give it once, with one metric: --task {task.domain}={task.name}:METRIC",
            )
        wanted.append(task)
    if not wanted:
        raise InvalidInputError("there is no task to score", "give --task DOMAIN=TASK, as lm_eval names the task")
    for domain in tasks:
        if domain not in files:
            raise InvalidInputError(
                f"there are no results of {domain}'s own expert, which is 100",
                f"evaluate it with lm_eval, and give --accuracy {domain}=FILE{suggest(domain, files)}",
            )
    names = {task.name for task in wanted}
    results = {name: _read(name, [Path(file) for file in paths], names) for name, paths in files.items()}
    accuracy: dict[str, dict[str, dict[str, float]]] = {name: {} for name in files}
    metric: dict[str, dict[str, str]] = {domain: {} for domain in tasks}
    for task in wanted:
        own = _result(results, task, task.domain)
        key = metric[task.domain][task.name] = _metric(own, task)
        for name in files:
            if name in tasks and name != task.domain and task.name not in results[name]:
                continue  # the expert of another domain
            result = _result(results, task, name)
            _check_conditions(task, name, result, own)
            accuracy[name].setdefault(task.domain, {})[task.name] = _accuracy(result, key, task)
        if accuracy[task.domain][task.domain][task.name] == 0:
            raise InvalidInputError(
                f"{own.file}: {key!r} of {task.name} is 0 for {task.domain}'s own expert, so there is no score",
                f"choose a task that the expert can do, or another metric: --task {task.domain}={task.name}:METRIC",
            )
    rows = []
    for name, by_domain in accuracy.items():
        shares = {
            domain: [p / accuracy[domain][domain][task] for task, p in by_task.items()]
            for domain, by_task in by_domain.items()
        }
        score = {domain: 100 * fmean(share) for domain, share in shares.items() if len(share) == len(metric[domain])}
        rows.append(AccuracyRow(name, by_domain, score, metric))
    return tuple(rows)


def _read(name: str, paths: Sequence[Path], wanted: set[str]) -> dict[str, _Result]:
    """Return task → figures of the wanted tasks in a model's files; of others there is only the name."""
    results: dict[str, _Result] = {}
    for path in paths:
        for task, result in _read_file(path).items():
            if task in wanted and task in results:
                raise InvalidInputError(
                    f"{results[task].file} and {path} both have results of {task} for {name}",
                    f"give one of them alone: --accuracy {name}=FILE",
                )
            results[task] = result
    return results


def _read_file(path: Path) -> dict[str, _Result]:
    try:
        document = read_json(path)
    except CheckpointError as error:
        raise InvalidInputError(error.message, RESULTS_HINT) from error
    tables = {key: document.get(key, {}) for key in ("results", "higher_is_better", *CONDITIONS)}
    results = tables["results"]
    is_read = all(isinstance(table, dict) for table in tables.values())
    if not (is_read and results and all(isinstance(figures, dict) for figures in results.values())):
        raise InvalidInputError(f"{path} holds no results of lm-evaluation-harness", RESULTS_HINT)
    higher = {task: value for task, value in tables["higher_is_better"].items() if isinstance(value, dict)}
    return {
        task: _Result(
            path,
            {key: value for key, value in figures.items() if _is_metric(key, value)},
            frozenset(key for key, value in higher.get(task, {}).items() if value is False),
            {key: tables[key].get(task) for key in CONDITIONS},
        )
        for task, figures in results.items()
    }


def _is_metric(key: str, value: object) -> bool:
    name, comma, _ = key.partition(",")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return bool(comma) and is_number and not name.endswith("_stderr")


def _result(results: Mapping[str, Mapping[str, _Result]], task: _Task, name: str) -> _Result:
    if task.name not in results[name]:
        known = list(results[name])
        raise InvalidInputError(
            f"the results of {name} have no task {task.name!r}: they have {_listed(known)}{suggest(task.name, known)}",
            f"run lm_eval --tasks {task.name} on it, and give --accuracy {name}=FILE for that file too",
        )
    return results[name][task.name]


def _metric(result: _Result, task: _Task) -> str:
    """Return the metric of a task, as the file calls it."""
    matching = [key for key in result.values if task.metric in ("", key, key.partition(",")[0])]
    if len(matching) == 1:
        return matching[0]
    known = _listed(matching or list(result.values))
    called = f"no metric {task.metric!r}" if task.metric else "no metric"
    has = f"several metrics: {known}" if matching else f"{called}{': it has ' + known if result.values else ''}"
    example = printable(next(iter(matching or result.values), "METRIC"))
    raise InvalidInputError(
        f"{result.file}: {task.name} has {has}", f"choose one: --task '{task.domain}={task.name}:{example}'"
    )


def _accuracy(result: _Result, key: str, task: _Task) -> float:
    if key not in result.values:
        raise InvalidInputError(
            f"{result.file}: {task.name} has no metric {quoted(key)}, in which {task.domain}'s expert was measured: "
            f"it has {_listed(list(result.values))}",
            f"choose one that all files have: --task '{task.domain}={task.name}:METRIC'",
        )
    value = result.values[key]
    if not 0 <= value <= 1 or key.partition(",")[0] in result.lower_is_better:
        reason = "lower is better" if 0 <= value <= 1 else f"it is {value:g}, not in [0, 1]"
        raise InvalidInputError(
            f"{result.file}: {key!r} of {task.name} is no accuracy: {reason}",
            f"choose an accuracy: --task '{task.domain}={task.name}:METRIC'",
        )
    return float(value)


def _check_conditions(task: _Task, name: str, result: _Result, own: _Result) -> None:
    for key, word in CONDITIONS.items():
        theirs, ours = result.conditions[key], own.conditions[key]
        if None not in (theirs, ours) and theirs != ours:
            raise IncompatibleError(
                f"{task.name} of {name} and of {task.domain} cannot be compared: {word} {quoted(theirs)} in "
                f"{result.file}, {quoted(ours)} in {own.file}",
                "evaluate both with the same settings of lm_eval",
            )


def _listed(names: Sequence[str]) -> str:
    return few([*map(quoted, names)], LISTED) or "none"
