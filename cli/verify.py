"""reg verify."""

import click

from cli.session import Session, as_json, pass_session, print_json, size


@click.command()
@as_json
@pass_session
@click.pass_context
def verify(context: click.Context, session: Session, as_json: bool) -> None:
    """Re-hash everything that is registered and follow the log; exit 1 if anything is not what was stored."""
    with session.registry() as registry:
        result = registry.verify()
    if as_json:
        print_json(result)
    else:
        for problem in result.problems:
            click.echo(f"problem: {problem}")
        verdict = f"{len(result.problems)} problems" if result.problems else "intact"
        click.echo(f"{verdict}: {result.versions} versions, {result.arrays} arrays, {size(result.nbytes)} hashed")
        click.echo(f"{result.events} events, the last of digest {result.head}")
        if result.orphans:
            click.echo(
                f"{result.orphans} arrays belong to no version (left by an interruption, harmless): reg gc removes them"
            )
    if result.problems:
        click.echo(
            "next: an array is repaired by adding its expert again from the checkpoint: reg add-expert NAME CKPT; "
            "the catalog, by a copy of it",
            err=True,
        )
        context.exit(1)
