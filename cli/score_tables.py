"""Tables of scores as text, Markdown or CSV."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cli.options import flag, options
from cli.output import JSON_HELP, once_for_all, print_json, print_table, quiet_option

if TYPE_CHECKING:
    from registry.evaluation import Row

INTERVAL = "95% interval"


class Table(NamedTuple):
    """A header and rows of equal length."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def _alone(context: click.Context, option: click.Parameter, given: bool) -> bool:
    chosen = once_for_all(context, option, given)
    if chosen and (other := context.meta.setdefault(__name__, option.opts[-1])) != option.opts[-1]:
        raise click.UsageError(f"{other} and {option.opts[-1]} exclude one another.")
    return chosen


_form = partial(flag, callback=_alone, expose_value=False)
forms = options(
    quiet_option,
    _form("--json", JSON_HELP, "as_json"),
    _form("--markdown", "Print Markdown tables.", "as_markdown"),
    _form("--csv", "Print CSV, all scores in one table.", "as_csv"),
)
"""--json, --markdown and --csv, which exclude one another, and --quiet; `print_scores` obeys them."""


def print_scores(document: Callable[[], Any], wide: Callable[[], Table], tables: Callable[[], list[Table]]) -> bool:
    """Print scores in the form that was asked for, and return True if it is not for a file, so that a step follows."""
    form = click.get_current_context().meta.get(__name__)
    if form == "--json":
        print_json(document())
    elif form == "--csv":
        import csv

        header, lines = wide()
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows((header, *lines))  # RFC 4180, but with LF line ends
        click.echo(text.getvalue(), nl=False)
    else:
        print_tables(tables(), as_markdown=form == "--markdown")
    return form in (None, "--json")


def print_tables(tables: Sequence[Table], *, as_markdown: bool = False) -> None:
    """Print tables on stdout, separated by empty lines."""
    for number, table in enumerate(tables):
        if number:
            click.echo()
        if as_markdown:
            for row in (table.header, ["---", *["---:"] * (len(table.header) - 1)], *table.rows):
                click.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        else:
            print_table(table.header, table.rows)


def tables_of(rows: "Sequence[Row]", domains: Sequence[str]) -> list[Table]:
    """Return tables of perplexities with token counts, and of scores, routing and cost if available."""
    known = [domain for domain in domains if any(domain in row.accuracy for row in rows)]
    experts = list(dict.fromkeys(expert for row in rows for expert in row.load))
    accuracy = _shares("routing accuracy", known, [(row, row.overall_accuracy) for row in rows])
    load = _shares("load", experts, [(row, row.overall_load) for row in rows])
    return [*_perplexity(rows, domains), *_score(rows, domains), *accuracy, *load, *_cost(rows)]


def shown_name(name: str) -> str:
    """Return the name of a row as tables show it: `averaged weights`, and `base model law@1` of a base model."""
    kind, space, ref = name.partition(" ")
    if kind == "base" and space:
        return f"base model {ref}"
    return "averaged weights" if name == "average" else name


def ranking_of(rows: "Sequence[Row]") -> list[Table]:
    """Return the ranking of rows by mean score, with each row's distance from the best and the interval of it."""
    from registry.evaluation.intervals import ahead_of

    ranked = sorted((row for row in rows if row.average is not None), key=lambda row: -(row.average or 0))
    if len(ranked) < 2:
        return []
    best = ranked[0]
    ahead = [None, *(ahead_of(best, row) for row in ranked[1:])]
    lines = [
        [
            str(rank),
            shown_name(row.name),
            figure(row.average),
            figure((best.average or 0) - (row.average or 0)),
            *([interval(ends)] if any(ahead) else []),
        ]
        for rank, (row, ends) in enumerate(zip(ranked, ahead, strict=True), 1)
    ]
    return [Table(("rank", "model", "mean", "behind", *([INTERVAL] if any(ahead) else [])), lines)]


def wide_table(rows: "Sequence[Row]", domains: Sequence[str]) -> Table:
    """Return all figures in one table, one line per model."""
    return in_columns([_wide(row, domains) for row in rows])


def in_columns(lines: Sequence[Mapping[str, object]]) -> Table:
    """Return a table of lines, each column → figure; missing figures are empty."""
    columns = list(dict.fromkeys(column for line in lines for column in line))
    return Table(columns, [[exact(line.get(column)) for column in columns] for line in lines])


def _wide(row: "Row", domains: Sequence[str]) -> dict[str, str | float | None]:
    line: dict[str, str | float | None] = {"model": shown_name(row.name)}
    line |= {f"perplexity {domain}": row.perplexity.get(domain) for domain in domains}
    line |= {f"score {domain}": row.score.get(domain) for domain in domains}
    line |= {"score mean": row.average, "parameters": row.parameters, "active parameters": row.active_parameters}
    line |= {f"routing accuracy {domain}": share for domain, share in row.overall_accuracy.items()}
    line |= {f"load {expert}": share for expert, share in row.overall_load.items()}
    if row.relative_time is not None:
        line["relative time"] = row.relative_time
    if row.spread is not None:
        line |= {f"perplexity {domain} sd": value for domain, value in row.spread.perplexity.items()}
        line |= {f"score {domain} sd": value for domain, value in row.spread.score.items()}
        line |= {"score mean sd": row.spread.average, "seeds": row.spread.seeds}
    for domain, ends in row.interval.items():
        line |= dict(zip((f"score {domain} low", f"score {domain} high"), ends, strict=True))
    if row.average_interval is not None:
        line |= dict(zip(("score mean low", "score mean high"), row.average_interval, strict=True))
    return line


def figure(value: float | None, spread: float | None = None) -> str:
    """Format a figure for a table, with its standard deviation if there is one."""
    if value is None:
        return ""
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"


def interval(ends: Sequence[float] | None) -> str:
    """Format the interval of a score for a table; empty for None."""
    return "" if ends is None else f"{figure(ends[0])} to {figure(ends[1])}"


def _perplexity(rows: "Sequence[Row]", domains: Sequence[str]) -> list[Table]:
    lines = [
        [shown_name(row.name), *_figures(row.perplexity, row.spread.perplexity if row.spread else {}, domains)]
        for row in rows
    ]
    tokens = [["(tokens)", *(f"{row.tokens[domain]:,}" for domain in domains)] for row in rows[:1] if row.tokens]
    return [Table(("perplexity", *domains), lines + tokens)]


def _score(rows: "Sequence[Row]", domains: Sequence[str]) -> list[Table]:
    if not any(row.score for row in rows):
        return []
    known = any(row.average_interval for row in rows)
    lines = [
        [
            shown_name(row.name),
            *_figures(row.score, row.spread.score if row.spread else {}, domains),
            figure(row.average, row.spread.average if row.spread else None),
            *([interval(row.average_interval)] if known else []),
        ]
        for row in rows
    ]
    return [Table(("normalised score", *domains, "mean", *([INTERVAL] if known else [])), lines)]


def _figures(values: Mapping[str, float], spread: Mapping[str, float], domains: Sequence[str]) -> list[str]:
    return [figure(values.get(domain), spread.get(domain)) for domain in domains]


def _shares(title: str, columns: Sequence[str], rows: "Sequence[tuple[Row, Mapping[str, float]]]") -> list[Table]:
    lines = [[shown_name(row.name), *(share(own.get(column)) for column in columns)] for row, own in rows if own]
    return [Table((title, *columns), lines)] if lines else []


def _cost(rows: "Sequence[Row]") -> list[Table]:
    timed = any(row.relative_time is not None for row in rows)
    lines = [
        [
            shown_name(row.name),
            f"{row.parameters:,}",
            f"{row.active_parameters:,}",
            *([figure(row.relative_time)] if timed else []),
        ]
        for row in rows
        if row.parameters is not None
    ]
    header = ("parameters", "in all", "active per token", *(["time per token, dense = 1"] if timed else []))
    return [Table(header, lines)] if any(row.load for row in rows) else []


def share(value: float | None) -> str:
    """Format a share for a table; empty for None."""
    return "" if value is None else f"{value:.1%}"


def exact(value: object) -> str:
    """Return a figure with all its digits, for CSV; empty for None."""
    return "" if value is None else str(value)
