"""Commands that maintain a registry: verify, gc, arrays copy, db."""

import shlex

import click

from cli.option_groups import CommandGroup, command
from cli.options import flag
from cli.output import announce, done, next_step, note, printed_json, progress
from cli.session import Session, pass_session
from registry.io.display import counted, short, size


@command("reg verify")
@pass_session
def verify(session: Session) -> None:
    """Hash all registered content again and verify the log; exit 1 if anything is damaged."""
    announce("hashing all registered content")
    with session.registry() as registry:
        result = registry.verify()
    if not printed_json(result):
        for problem in result.problems:
            click.echo(f"problem: {problem}")
        verdict = counted(len(result.problems), "problem") if result.problems else "intact"
        checked = (
            f"{counted(result.versions, 'version')}, {counted(result.arrays, 'array')}, {size(result.nbytes)} hashed"
        )
        done(None, f"{verdict}: {checked}", f"{counted(result.events, 'event')}, the last of digest {result.head}")
        if result.orphans:
            belong = "belongs" if result.orphans == 1 else "belong"
            why = f"{belong} to no version (left by an interrupted command, harmless)"
            done(None, f"{counted(result.orphans, 'array')} {why}: reg gc deletes leftovers")
            if not result.problems:
                next_step(["gc", "--dry-run"])
    if result.problems:
        note(
            "next: to repair an array, add its expert again from the checkpoint: reg add-expert NAME CKPT; "
            "to repair the catalog, restore a backup"
        )
        raise click.exceptions.Exit(1)


@command("reg gc --dry-run", "reg gc")
@flag("--dry-run", "Only list what would be deleted, with its size.")
@pass_session
def gc(session: Session, dry_run: bool) -> None:
    """Delete arrays that nothing uses, leftovers of interrupted commands, and cached files.

    A pass that runs in another process continues, but can no longer be resumed after an interruption. Merged adapters
    and temporary models of compositions without an owner are deleted when they are a day old.
    """
    announce("looking for what nothing uses")
    with session.registry() as registry:
        garbage = registry.gc(dry_run=dry_run)
    counts = {name: value for name, value in vars(garbage).items() if isinstance(value, int) and name != "nbytes"}
    pieces = [{"name": piece.name, "bytes": piece.nbytes} for piece in garbage.pieces]
    document = {"digests": garbage.digests, "bytes": garbage.nbytes, **counts, "pieces": pieces}
    if printed_json(document | {"dry_run": dry_run}):
        return
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {counted(len(garbage.digests), 'array')} ({size(garbage.nbytes)})"]
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
            lines.append(f"{verb} {counted(number, noun, plural)} ({size(nbytes)})")
    if dry_run:  # the list is the result, which --quiet must not hide
        for line in (*lines, *(f"  {piece.name}  {size(piece.nbytes)}" for piece in garbage.pieces[arrays:])):
            click.echo(line)
        next_step(["gc"])
    else:
        done(None, *lines)


@click.group(cls=CommandGroup)
def arrays() -> None:
    """Copy the arrays of a registry between folders and buckets: reg arrays copy FROM TO."""


@arrays.command(
    "copy",
    examples=(
        "reg arrays copy ~/.local/share/reg/arrays s3://bucket/team",
        "reg arrays copy s3://bucket/team /data/arrays",
    ),
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@pass_session
def arrays_copy(session: Session, source: str, target: str) -> None:
    """Copy all arrays from one folder or bucket (s3://, gs://, az://) to another, and check them at both ends.

    An interrupted copy goes on when it is repeated: arrays that are there and intact are not written again. FROM keeps
    its arrays. Afterwards name TO with --arrays or REG_ARRAYS. Exit 1 if an array of FROM is damaged.
    """
    from registry.maintenance.array_copy import copy_arrays

    result = copy_arrays(source, target, home=session.home, database=session.database, progress=progress())
    if not printed_json(result):
        for problem in result.problems:
            click.echo(f"problem: {problem}")
        there = f"; {counted(result.kept, 'array')} were there" if result.kept else ""
        done(
            result.target, f"copied {counted(result.copied, 'array')} ({size(result.nbytes)}) to {result.target}{there}"
        )
        if not result.problems:
            next_step(["--arrays", result.target, "verify"])
            note(f"or name them for all commands: export REG_ARRAYS={result.target}")
    if result.problems:
        note("next: reg verify names what uses these arrays; reg gc deletes what nothing uses")
        raise click.exceptions.Exit(1)


@click.group(cls=CommandGroup)
def db() -> None:
    """Show or upgrade the schema of the catalog, or copy it: reg db current, reg db upgrade, reg db copy."""


@db.command(examples=("reg db current",))
@pass_session
def current(session: Session) -> None:
    """Print the catalog's revision and the revision that this program works with."""
    from registry.maintenance.catalog_schema import revisions

    revision, head = revisions(session.home, session.database, session.arrays)
    if not printed_json({"current": revision, "head": head}):
        click.echo(f"{revision or 'no catalog yet'} (this program works with {head})")
        if revision != head:
            next_step(["db", "upgrade"])


@db.command(examples=("reg db upgrade",))
@pass_session
def upgrade(session: Session) -> None:
    """Upgrade the catalog to the revision that this program works with; create it if it does not exist.

    The upgrade is atomic; if interrupted, repeat it. An older SQLite catalog is first copied to a file beside it, named
    after its revision and the time; to go back, restore that file. Do not keep it longer than needed: opting out with
    --purge deletes such copies. Other databases are not backed up: for PostgreSQL run pg_dump before.
    """
    from registry.maintenance.catalog_schema import upgrade as upgrade_catalog

    upgraded = upgrade_catalog(session.home, session.database, session.arrays)
    if printed_json(upgraded):
        return
    changed = upgraded.before != upgraded.after
    lines = [f"the catalog is at {upgraded.after}" + (f" (was at {upgraded.before or 'nothing'})" if changed else "")]
    if upgraded.backup is not None:
        lines.append(f"  backup: {upgraded.backup}")
    elif changed and upgraded.before is not None:
        lines.append("  no backup was made: only catalogs in SQLite files are copied. Of this one, from now on:")
        lines.append("  pg_dump --format=custom --file=catalog.dump DATABASE")
    done(upgraded.after, *lines)
    next_step(["verify"])


@db.command("copy", examples=("reg db copy sqlite:////srv/reg/catalog.sqlite postgresql://me@db/reg",))
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@pass_session
def db_copy(session: Session, source: str, target: str) -> None:
    """Copy the catalog in the database FROM to the empty database TO; both are URLs.

    The copy is one transaction: every row, the same registry's id, the same log. Rows and log are compared before it is
    committed. Nobody can write to FROM meanwhile. Afterwards use one of the two alone: each takes the arrays that only
    the other knows for garbage.
    """
    from registry.maintenance.catalog_schema import copy as copy_catalog

    copied = copy_catalog(source, target, session.home)
    if printed_json(copied):
        return
    rows = counted(sum(copied.rows.values()), "row")
    done(
        copied.target,
        f"copied {rows} and {counted(copied.events, 'event')} to {copied.target}",
        "  use this one from now on, and keep the other as a backup only: two catalogs with the same arrays would each",
        "  delete what only the other knows",
    )
    next_step(f"export REG_DATABASE={shlex.quote(copied.target)}; reg verify")
