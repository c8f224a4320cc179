"""reg db."""

import click

from cli.option_groups import CommandGroup, GroupedCommand
from cli.output import as_json, done, next_step, print_json
from cli.session import Session, pass_session


@click.group(cls=CommandGroup)
def db() -> None:
    """Show or upgrade the schema of the catalog: reg db current, reg db upgrade."""


@db.command(cls=GroupedCommand, examples=("reg db current",))
@as_json
@pass_session
def current(session: Session, as_json: bool) -> None:
    """Print the catalog's revision and the revision that this program works with."""
    from registry.maintenance.catalog_schema import revisions

    revision, head = revisions(session.home, session.database, session.arrays)
    if as_json:
        print_json({"current": revision, "head": head})
    else:
        click.echo(f"{revision or 'no catalog yet'} (this program works with {head})")
        if revision != head:
            next_step(["db", "upgrade"])


@db.command(cls=GroupedCommand, examples=("reg db upgrade",))
@as_json
@pass_session
def upgrade(session: Session, as_json: bool) -> None:
    """Upgrade the catalog to the revision that this program works with; create it if it does not exist.

    The upgrade is atomic; if interrupted, repeat it. An older SQLite catalog is first copied to a file beside it, named
    after its revision and the time; to go back, restore that file. Do not keep it longer than needed: opting out with
    --purge deletes such copies. Other databases are not backed up.
    """
    from registry.maintenance.catalog_schema import upgrade as upgrade_catalog

    upgraded = upgrade_catalog(session.home, session.database, session.arrays)
    if as_json:
        print_json(upgraded)
        return
    changed = upgraded.before != upgraded.after
    lines = [f"the catalog is at {upgraded.after}" + (f" (was at {upgraded.before or 'nothing'})" if changed else "")]
    if upgraded.backup is not None:
        lines.append(f"  backup: {upgraded.backup}")
    elif changed and upgraded.before is not None:
        lines.append("  no backup was made: only catalogs in SQLite files are copied")
    done(upgraded.after, *lines)
    next_step(["verify"])
