"""reg evaluate."""

from pathlib import Path
from typing import Any

import click

from cli.options import file_path
from cli.recipe import check_members
from cli.score_tables import forms, print_csv, print_tables, ranking_of, tables_of, test_text, wide_table
from cli.session import Session, pass_session, print_json, split


@click.command()
@click.argument("folders", metavar="[FOLDER…]", nargs=-1, type=file_path)
@test_text
@click.option("--baselines", is_flag=True, help="Rows also for the base model, the experts and their plain average.")
@click.option(
    "--oracle",
    is_flag=True,
    help="Of every mixture a further row: each domain's tokens sent to its own expert, the upper bound.",
)
@click.option(
    "--speed",
    is_flag=True,
    help="Of every mixture also a token's time, relative to a dense expert's, side by side.",
)
@click.option("--experts", multiple=True, metavar="A,B@2,…", help="Compose these too, by each of --methods.")
@click.option(
    "--methods",
    multiple=True,
    metavar="all|NAME,…",
    help="What --experts are composed by; each composition is scored, then deleted.",
)
@click.option("--base", metavar="NAME[@V]", help="The base model of --methods. [default: the only one registered]")
@forms
@pass_session
def evaluate(
    session: Session,
    /,
    folders: tuple[Path, ...],
    data: dict[str, list[Path]],
    baselines: bool,
    oracle: bool,
    speed: bool,
    experts: tuple[str, ...],
    methods: tuple[str, ...],
    base: str | None,
    as_json: bool,
    as_markdown: bool,
    as_csv: bool,
    **settings: Any,
) -> None:
    """Print perplexity per domain of model folders, and of mixtures how they route.

    Where a domain's own expert (the one of its name) is registered, also the normalised score: 100 is that expert. Of a
    mixture also routing accuracy, the share of a domain's tokens that go to its own expert, and load, the experts'
    shares of all tokens; as means over the layers, which --json has one by one.

    With --experts and --methods, one row a method, side by side, and their ranking by average score; where a method has
    seeds, mean ± standard deviation.
    The figures of a composition made here are stored with it: reg show DIGEST.
    """
    if not folders and not experts:
        raise click.UsageError("Missing argument '[FOLDER…]' (or '--experts' and '--methods').")
    if bool(experts) != bool(methods):
        raise click.UsageError("--experts and --methods go together.")
    if experts:
        check_members(session, split(experts))
    from registry import TestSettings

    with session.registry(create=True) as registry:
        rows = registry.evaluate(
            folders,
            data,
            TestSettings(**settings),
            baselines=baselines,
            oracle=oracle,
            speed=speed,
            experts=split(experts),
            methods=split(methods),
            base=base,
        )
    if as_json:
        print_json([row.document() for row in rows])
    elif as_csv:
        print_csv(wide_table(rows, list(data)))
    else:
        print_tables([*tables_of(rows, list(data)), *(ranking_of(rows) if methods else [])], as_markdown=as_markdown)
