"""reg gc."""

import click

from cli.option_groups import GroupedCommand
from cli.output import announce, as_json, count, done, next_step, print_json, short, size
from cli.session import Session, pass_session


@click.command(cls=GroupedCommand, examples=("reg gc --dry-run", "reg gc"))
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted, with its size.")
@as_json
@pass_session
def gc(session: Session, dry_run: bool, as_json: bool) -> None:
    """Delete arrays that nothing uses, leftovers of interrupted commands, and cached files.

    A pass that runs in another process continues, but can no longer be resumed after an interruption. Merged adapters
    and temporary models of compositions without an owner are deleted when they are a day old.
    """
    announce("looking for what nothing uses")
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
                "pieces": [{"name": piece.name, "bytes": piece.nbytes} for piece in garbage.pieces],
                "dry_run": dry_run,
            }
        )
        return
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {count(len(garbage.digests), 'array')} ({size(garbage.nbytes)})"]
    arrays = len(garbage.digests)
    lines += [f"  {short(piece.name)}  {size(piece.nbytes)}" for piece in garbage.pieces[:arrays]]
    for number, noun, plural, nbytes in (
        (garbage.passes, "running or interrupted pass", "running or interrupted passes", garbage.pass_bytes),
        (garbage.merged, "merged adapter", "merged adapters", garbage.merged_bytes),
        (garbage.work, "temporary model of an interrupted composition", "temporary models of interrupted compositions",
         garbage.work_bytes),
        (garbage.cached, "cached file", "cached files", garbage.cached_bytes),
    ):  # fmt: skip
        if number:
            lines.append(f"{verb} {count(number, noun, plural)} ({size(nbytes)})")
    if dry_run:  # the list is the result, which --quiet must not hide
        for line in (*lines, *(f"  {piece.name}  {size(piece.nbytes)}" for piece in garbage.pieces[arrays:])):
            click.echo(line)
        next_step(["gc"])
    else:
        done(None, *lines)
