"""reg gc."""

import click

from cli.session import Session, as_json, pass_session, print_json, size


@click.command()
@click.option("--dry-run", is_flag=True, help="Only tell what would be deleted.")
@as_json
@pass_session
def gc(session: Session, dry_run: bool, as_json: bool) -> None:
    """Delete arrays that no version needs and passes that were never finished."""
    with session.registry() as registry:
        garbage = registry.gc(dry_run=dry_run)
    if as_json:
        print_json({"digests": garbage.digests, "bytes": garbage.nbytes, "dry_run": dry_run})
        return
    deed = "would delete" if dry_run else "deleted"
    click.echo(f"{deed} {len(garbage.digests)} arrays ({size(garbage.nbytes)})")
    for digest in garbage.digests:
        click.echo(f"  {digest}")
