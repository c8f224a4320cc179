"""reg verify."""

import click

from cli.option_groups import GroupedCommand
from cli.output import announce, as_json, count, done, next_step, note, print_json, size
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg verify",))
@as_json
@pass_session
@click.pass_context
def verify(context: click.Context, session: Session, as_json: bool) -> None:
    """Hash all registered content again and verify the log; exit 1 if anything is damaged."""
    announce("hashing all registered content")
    with session.registry() as registry:
        result = registry.verify()
    if as_json:
        print_json(result)
    else:
        for problem in result.problems:
            click.echo(f"problem: {problem}")
        verdict = count(len(result.problems), "problem") if result.problems else "intact"
        checked = f"{count(result.versions, 'version')}, {count(result.arrays, 'array')}, {size(result.nbytes)} hashed"
        done(None, f"{verdict}: {checked}", f"{count(result.events, 'event')}, the last of digest {result.head}")
        if result.orphans:
            belong = "belongs" if result.orphans == 1 else "belong"
            why = f"{belong} to no version (left by an interrupted command, harmless)"
            done(None, f"{count(result.orphans, 'array')} {why}: reg gc deletes leftovers")
            if not result.problems:
                next_step(["gc", "--dry-run"])
    if result.problems:
        note(
            "next: to repair an array, add its expert again from the checkpoint: reg add-expert NAME CKPT; "
            "to repair the catalog, restore a backup"
        )
        context.exit(1)
