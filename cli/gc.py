"""reg gc."""

import click

from cli.session import Session, as_json, pass_session, print_json, size


@click.command()
@click.option("--dry-run", is_flag=True, help="Only tell what would be deleted.")
@as_json
@pass_session
def gc(session: Session, dry_run: bool, as_json: bool) -> None:
    """Delete arrays that no version needs, what interrupted commands left, and what can be made again.

    A pass that is under way in another process goes on, but can no longer be resumed from where it is. Merged adapters
    and models that compositions made for themselves are taken for left when they are a day old.
    """
    with session.registry() as registry:
        garbage = registry.gc(dry_run=dry_run)
    if as_json:
        print_json(
            {
                "digests": garbage.digests,
                "bytes": garbage.nbytes,
                "passes": garbage.passes,
                "pass_bytes": garbage.pass_bytes,
                "merged": garbage.merged,
                "merged_bytes": garbage.merged_bytes,
                "work": garbage.work,
                "work_bytes": garbage.work_bytes,
                "cached": garbage.cached,
                "cached_bytes": garbage.cached_bytes,
                "dry_run": dry_run,
            }
        )
        return
    deed = "would delete" if dry_run else "deleted"
    click.echo(f"{deed} {len(garbage.digests)} arrays ({size(garbage.nbytes)})")
    for digest in garbage.digests:
        click.echo(f"  {digest}")
    if garbage.passes:
        click.echo(f"{deed} {garbage.passes} passes under way or interrupted ({size(garbage.pass_bytes)})")
    if garbage.merged:
        click.echo(f"{deed} {garbage.merged} merged adapters ({size(garbage.merged_bytes)})")
    if garbage.work:
        click.echo(f"{deed} {garbage.work} models of compositions that never ended ({size(garbage.work_bytes)})")
    if garbage.cached:
        click.echo(f"{deed} {garbage.cached} files that can be made again ({size(garbage.cached_bytes)})")
