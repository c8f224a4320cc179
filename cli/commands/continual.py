"""reg continual."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.next_steps import composing_as_typed
from cli.option_groups import GroupedCommand
from cli.output import next_step, print_json
from cli.recipe import asked, recipe_options
from cli.score_tables import Table, figure, forms, print_csv, print_tables, test_text
from cli.session import Session, pass_session
from registry.calibration.corpus import check_files

if TYPE_CHECKING:
    from registry.evaluation import Continual


@click.command(
    cls=GroupedCommand,
    examples=("reg continual --schedule code,math --data code=c.jsonl --data math=m.jsonl",),
)
@click.option(
    "--schedule",
    multiple=True,
    required=True,
    metavar="A,B@2,…",
    help="The experts in the order in which they join; each needs --data under its name.",
)
@test_text
@recipe_options("to", "routing", "routing_tokens", "mixing", "lead", "dtype", "device")
@click.option("--base", metavar="NAME[@V]", help="The base model, for recipes that need one.")
@forms
@pass_session
@click.pass_context
def continual(
    context: click.Context,
    session: Session,
    /,
    schedule: tuple[str, ...],
    data: dict[str, list[Path]],
    as_json: bool,
    as_markdown: bool,
    as_csv: bool,
    base: str | None,
    windows: int,
    seq_len: int,
    batch_size: int,
    device: str | None,
    dtype: str,
    **settings: Any,
) -> None:
    """Print the score of each domain after each expert joins, with forgetting and backward transfer.

    After each step the experts so far are composed, scored on their domains, and the composition is deleted. Scores are
    normalised: 100 is the domain's own expert. Forgetting: a domain's best earlier score minus its last, averaged over
    the earlier domains (Chaudhry et al. 2018). Backward transfer: a domain's last score minus its score when it joined
    (Lopez-Paz & Ranzato 2017).
    """
    check_files(data)
    wanted = asked(context, session, schedule, base, settings)
    from registry import TestSettings

    tested = TestSettings(windows, seq_len, batch_size, device, dtype)
    with session.registry() as registry:
        result = registry.continual(wanted.experts, data, tested, wanted.mixture, base=wanted.base)
    if as_json:
        print_json(result.document())
    elif as_csv:
        print_csv(_table(result, lambda value: "" if value is None else str(value)))
    else:
        print_tables([_table(result, figure)], as_markdown=as_markdown)
    if not (as_csv or as_markdown):
        without = ("data", "windows", "seq_len", "batch_size", "device", "dtype")
        next_step(composing_as_typed(context, without=without, renamed={"schedule": "--experts"}))


def _table(result: "Continual", cell: Callable[[float | None], str]) -> Table:
    """Return one line per step: the scores of the domains so far, their mean, forgetting and backward transfer."""
    lines = []
    for step, name in enumerate(result.schedule, start=1):
        so_far = result.until(step)
        scores = [*so_far.score[-1], *[None] * (len(result.schedule) - step)]
        figures = (so_far.average, so_far.forgetting, so_far.backward_transfer)
        lines.append([name, *map(cell, (*scores, *figures))])
    return Table(("score after", *result.schedule, "mean", "forgetting", "backward transfer"), lines)
