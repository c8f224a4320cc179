"""reg arrays."""

import click

from cli.option_groups import CommandGroup, GroupedCommand
from cli.output import as_json, count, done, next_step, note, print_json, progress, size
from cli.session import Session, pass_session


@click.group(cls=CommandGroup)
def arrays() -> None:
    """Copy the arrays of a registry between folders and buckets: reg arrays copy FROM TO."""


@arrays.command(
    cls=GroupedCommand,
    examples=(
        "reg arrays copy ~/.local/share/reg/arrays s3://bucket/team",
        "reg arrays copy s3://bucket/team /data/arrays",
    ),
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@as_json
@click.pass_context
@pass_session
def copy(session: Session, context: click.Context, source: str, target: str, as_json: bool) -> None:
    """Copy all arrays from one folder or bucket (s3://, gs://, az://) to another, and check them at both ends.

    An interrupted copy goes on when it is repeated: arrays that are there and intact are not written again. FROM keeps
    its arrays. Afterwards name TO with --arrays or REG_ARRAYS. Exit 1 if an array of FROM is damaged.
    """
    from registry.maintenance.array_copy import copy_arrays

    result = copy_arrays(source, target, home=session.home, database=session.database, progress=progress())
    if as_json:
        print_json(result)
    else:
        for problem in result.problems:
            click.echo(f"problem: {problem}")
        there = f"; {count(result.kept, 'array')} were there" if result.kept else ""
        done(result.target, f"copied {count(result.copied, 'array')} ({size(result.nbytes)}) to {result.target}{there}")
        if not result.problems:
            next_step(["--arrays", result.target, "verify"])
            note(f"or name them for all commands: export REG_ARRAYS={result.target}")
    if result.problems:
        note("next: reg verify names what uses these arrays; reg gc deletes what nothing uses")
        context.exit(1)
