"""reg evaluate."""

from pathlib import Path
from typing import Any, Literal

import click

from cli.options import Integer, file_path, split
from cli.output import print_json
from cli.recipe import check_members
from cli.score_tables import forms, print_csv, print_tables, ranking_of, tables_of, test_text, wide_table
from cli.session import Session, pass_session


def _counts(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | Literal["all"]:
    """Return the numbers of a list such as `1,2,4`, or `all`."""
    if text == "all":
        return "all"
    parts = split([text or ""])
    if any(not (part.isascii() and part.isdigit() and len(part) < 10 and int(part)) for part in parts):
        raise click.BadParameter(f"{text!r} is not all, nor a list of numbers from 1 such as 1,2,4")
    return [int(part) for part in parts]


@click.command()
@click.argument("folders", metavar="[FOLDER…]", nargs=-1, type=file_path)
@test_text
@click.option("--baselines", is_flag=True, help="Add rows for the base model, the experts and their plain average.")
@click.option(
    "--oracle",
    is_flag=True,
    help="Add a row for every mixture with each domain's tokens sent to its own expert: the upper bound.",
)
@click.option(
    "--speed",
    is_flag=True,
    help="Add every mixture's time per token, relative to a dense expert measured alternately.",
)
@click.option("--experts", multiple=True, metavar="A,B@2,…", help="Compose these experts too, with each of --methods.")
@click.option(
    "--methods",
    multiple=True,
    metavar="all|NAME,…",
    help="Methods that compose --experts; each composition is scored, then deleted.",
)
@click.option("--base", metavar="NAME[@V]", help="The base model of --methods. [default: the only one registered]")
@click.option(
    "--seeds",
    type=Integer(1),
    metavar="N",
    help="Seeds of random methods, shown as mean ± standard deviation. [default: 5; 3 where routers are trained]",
)
@click.option(
    "--active-experts",
    metavar="all|N,…",
    callback=_counts,
    help="Add a row for every folder and each of these numbers of experts per token.",
)
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
    seeds: int | None,
    active_experts: list[int] | Literal["all"],
    as_json: bool,
    as_markdown: bool,
    as_csv: bool,
    **settings: Any,
) -> None:
    """Print perplexities of model folders per domain, and the routing of mixtures.

    If a domain's own expert (the expert of the same name) is registered, the normalised score is printed too: 100 is
    that expert. For mixtures, routing accuracy is the share of a domain's tokens that go to its own expert, and load is
    each expert's share of all tokens; both are means over the layers. --json has every layer, and routing accuracy by
    number of tokens read.

    With --experts and --methods there is one row per method, and a ranking by average score; methods with several seeds
    show mean ± standard deviation (the seed of the training where routers are trained, else that of the recipe).
    With --active-experts, the same folder is scored with other numbers of experts per token (FlexOlmo, Fig. 3); it is
    not changed.
    Scores of a composition made here are stored with it: reg show DIGEST.
    """
    if not folders and not experts:
        raise click.UsageError("Missing argument '[FOLDER…]' (or '--experts' and '--methods').")
    if bool(experts) != bool(methods):
        raise click.UsageError("--experts and --methods go together.")
    if active_experts and not folders:
        raise click.UsageError("--active-experts is of FOLDER….")
    if seeds is not None and not methods:
        raise click.UsageError("--seeds is of --methods.")
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
            seeds=seeds,
            active_experts=active_experts,
        )
    if as_json:
        print_json([row.document() for row in rows])
    elif as_csv:
        print_csv(wide_table(rows, list(data)))
    else:
        print_tables([*tables_of(rows, list(data)), *(ranking_of(rows) if methods else [])], as_markdown=as_markdown)
