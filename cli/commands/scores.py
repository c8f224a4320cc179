"""reg scores."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from cli.option_groups import GroupedCommand
from cli.options import pairs
from cli.output import print_json
from cli.score_tables import Table, figure, forms, print_csv, print_tables
from registry.io.display import printable

if TYPE_CHECKING:
    from registry.evaluation import AccuracyRow


def _lists(form: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, list[str]]]:
    """Return a callback that parses `key=value` texts into key → values."""

    def read(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        for key, value in pairs(texts, form):
            values.setdefault(key, []).append(value)
        return values

    return read


@click.command(
    cls=GroupedCommand,
    examples=("reg scores --task math=gsm8k --accuracy math=math.json --accuracy moe=moe.json",),
)
@click.option(
    "--accuracy",
    "files",
    multiple=True,
    required=True,
    metavar="NAME=FILE",
    help="A model and its results_*.json of lm_eval (repeatable). A domain's own expert has the domain's name.",
    callback=_lists("NAME=FILE"),
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    required=True,
    metavar="DOMAIN=TASK[:METRIC]",
    help="A task of a domain (repeatable), with its metric if the files have several: math=gsm8k:exact_match.",
    callback=_lists("DOMAIN=TASK[:METRIC]"),
)
@forms
def scores(
    files: dict[str, list[str]], tasks: dict[str, list[str]], as_json: bool, as_markdown: bool, as_csv: bool
) -> None:
    """Print normalised accuracies from result files of lm_eval: 100 is each domain's own expert.

    The score of a model in a task is 100 · (its accuracy) / (accuracy of the domain's own expert), the form of the
    DUME paper's Table 3; that of a domain is the mean over its tasks, and the average the mean over domains. It reads
    files only: no registry, no model, and no lm_eval.
    """
    from registry.evaluation import accuracy_scores

    rows = accuracy_scores(files, tasks)
    if as_json:
        print_json([row.document() for row in rows])
    elif as_csv:
        print_csv(_wide(rows))
    else:
        print_tables(_tables(rows), as_markdown=as_markdown)


def _columns(rows: "Sequence[AccuracyRow]") -> list[tuple[str, str]]:
    return [(domain, task) for domain, tasks in rows[0].metric.items() for task in tasks]


def _tables(rows: "Sequence[AccuracyRow]") -> list[Table]:
    columns = _columns(rows)
    accuracies = [
        [row.name, *(_share(row.accuracy.get(domain, {}).get(task)) for domain, task in columns)] for row in rows
    ]
    domains = list(rows[0].metric)
    scored = [[row.name, *(figure(row.score.get(domain)) for domain in domains), figure(row.average)] for row in rows]
    titles = (printable(f"{domain}: {task} ({rows[0].metric[domain][task]})") for domain, task in columns)
    return [Table(("accuracy", *titles), accuracies), Table(("normalised score", *domains, "mean"), scored)]


def _wide(rows: "Sequence[AccuracyRow]") -> Table:
    columns, domains = _columns(rows), list(rows[0].metric)
    header = ["model", *(f"accuracy {domain} {task}" for domain, task in columns)]
    header += [*(f"score {domain}" for domain in domains), "score mean"]
    return Table(
        header,
        [
            [
                row.name,
                *(_exact(row.accuracy.get(domain, {}).get(task)) for domain, task in columns),
                *(_exact(row.score.get(domain)) for domain in domains),
                _exact(row.average),
            ]
            for row in rows
        ],
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _exact(value: float | None) -> str:
    return "" if value is None else str(value)
