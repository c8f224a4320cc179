"""reg gc."""

import click

from cli.session import Session, as_json, count, done, pass_session, print_json, size


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
    lines = [f"{deed} {count(len(garbage.digests), 'array')} ({size(garbage.nbytes)})"]
    lines += [f"  {digest}" for digest in garbage.digests]
    for number, what, plural, nbytes in (
        (garbage.passes, "pass under way or interrupted", "passes under way or interrupted", garbage.pass_bytes),
        (garbage.merged, "merged adapter", "merged adapters", garbage.merged_bytes),
        (garbage.work, "model of a composition that never ended", "models of compositions that never ended",
         garbage.work_bytes),
        (garbage.cached, "file that can be made again", "files that can be made again", garbage.cached_bytes),
    ):  # fmt: skip
        if number:
            lines.append(f"{deed} {count(number, what, plural)} ({size(nbytes)})")
    if dry_run:  # it was asked what would go
        for line in lines:
            click.echo(line)
    else:
        done(None, *lines)
