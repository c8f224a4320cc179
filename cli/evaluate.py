"""reg evaluate."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import DTYPES, Integer, file_path
from cli.session import Session, as_json, pairs, pass_session, print_json, print_table

if TYPE_CHECKING:
    from registry.evaluation import Row


def _files(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for domain, file in pairs(texts, "DOMAIN=FILE"):
        files.setdefault(domain, []).append(Path(file))
    return files


@click.command()
@click.argument("folders", metavar="FOLDER…", nargs=-1, required=True, type=file_path)
@click.option(
    "--data",
    multiple=True,
    required=True,
    metavar="DOMAIN=FILE",
    help="Test text of a domain (repeatable).",
    callback=_files,
)
@click.option("--baselines", is_flag=True, help="Rows also for the base model, the experts and their plain average.")
@click.option("--windows", type=Integer(1), metavar="N", default=48, show_default=True, help="Windows of each domain.")
@click.option("--seq-len", type=Integer(2), metavar="N", default=256, show_default=True, help="Tokens in a window.")
@click.option("--batch-size", type=Integer(1), metavar="N", default=16, show_default=True, help="Windows in a batch.")
@click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]")
@click.option(
    "--dtype",
    type=DTYPES,
    metavar="DTYPE",
    default="float32",
    show_default=True,
    help="bfloat16, float16 or float32: what the models compute in.",
)
@as_json
@pass_session
def evaluate(
    session: Session,
    /,
    folders: tuple[Path, ...],
    data: dict[str, list[Path]],
    baselines: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Print perplexity per domain of model folders.

    Where a domain's own expert (the one of its name) is registered, also the normalised score: 100 is that expert.
    """
    from registry import TestSettings

    with session.registry(create=True) as registry:
        rows = registry.evaluate(folders, data, TestSettings(**settings), baselines=baselines)
    if as_json:
        print_json([vars(row) | {"average": row.average} for row in rows])
        return
    print_rows(rows, list(data))


def print_rows(rows: "list[Row]", domains: list[str]) -> None:
    """Print perplexities with the tokens they stand on, and below them scores where there are any."""
    print_table(
        ("perplexity", *domains),
        [
            *((row.name, *(f"{row.perplexity[domain]:.2f}" for domain in domains)) for row in rows),
            *(("(tokens)", *(f"{row.tokens[domain]:,}" for domain in domains)) for row in rows[:1] if row.tokens),
        ],
    )
    if any(row.score for row in rows):
        click.echo()
        print_table(
            ("normalised score", *domains, "average"),
            [
                (
                    row.name,
                    *(f"{row.score[domain]:.2f}" if domain in row.score else "" for domain in domains),
                    "" if row.average is None else f"{row.average:.2f}",
                )
                for row in rows
            ],
        )
