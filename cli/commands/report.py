"""reg report."""

from pathlib import Path
from typing import Any

import click

from cli.next_steps import evaluating
from cli.opted_out import warn_of_opted_out
from cli.option_groups import EVALUATION, GroupedCommand
from cli.options import file_path
from cli.output import as_json, done, next_step, print_json
from cli.places import composed_text
from cli.score_tables import maybe_test_text
from cli.session import Session, pass_session


@click.command(
    cls=GroupedCommand,
    headings=EVALUATION,
    examples=("reg report moe/ --out report.html", "reg report moe/ --data code=code.test.jsonl --out report.html"),
)
@click.argument("composition", metavar="FOLDER|DIGEST", type=composed_text)
@maybe_test_text
@click.option("--out", type=file_path, metavar="FILE", help="The page to write; optional with --json.")
@click.option("--force", is_flag=True, help="Replace --out.")
@as_json
@pass_session
def report(
    session: Session,
    /,
    composition: str,
    data: dict[str, list[Path]],
    out: Path | None,
    force: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Write a page about a composition: routing by domain, confusion, overlap, load, scores, lineage.

    It is one self-contained HTML file. With --data, routing and scores are measured now, also for the base model, the
    experts, their averaged weights and oracle routing. Otherwise they come from the stored evaluation with the most
    domains; without one, routing is predicted from statistics.
    """
    if out is None and not as_json:
        raise click.UsageError("give --out FILE, or --json")

    from registry import TestSettings

    if out is not None:
        from registry.report.write_page import check_page

        check_page(out, replace=force)
    with session.registry() as registry:
        figures = registry.report(composition, data, TestSettings(**settings))
        warn_of_opted_out(registry, [composition])  # last: a wrong name is to be reported before torch is imported
    if out is not None:
        from registry.report import page
        from registry.report.write_page import write_page

        write_page(out, page(figures), replace=force)
    if as_json:
        print_json(figures.document())
        return
    done(str(out), f"wrote {out}", *(f"  {text}" for text in figures.notes))
    folder = composition if Path(composition).is_dir() else figures.folder
    if not figures.scores and folder is not None:
        next_step(evaluating([folder], figures.experts))
    else:
        next_step(["push", composition, "ORG/NAME"] if Path(composition).is_dir() else ["show", composition])
