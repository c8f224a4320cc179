"""reg db."""

import shlex

import click

from cli.option_groups import CommandGroup, GroupedCommand
from cli.output import as_json, count, done, next_step, print_json
from cli.session import Session, pass_session


@click.group(cls=CommandGroup)
def db() -> None:
    """Show or upgrade the schema of the catalog, or copy it: reg db current, reg db upgrade, reg db copy."""


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
    --purge deletes such copies. Other databases are not backed up: for PostgreSQL run pg_dump before.
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
        lines.append("  no backup was made: only catalogs in SQLite files are copied. Of this one, from now on:")
        lines.append("  pg_dump --format=custom --file=catalog.dump DATABASE")
    done(upgraded.after, *lines)
    next_step(["verify"])


@db.command(
    cls=GroupedCommand,
    examples=("reg db copy sqlite:////srv/reg/catalog.sqlite postgresql://me@db/reg",),
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@as_json
@pass_session
def copy(session: Session, source: str, target: str, as_json: bool) -> None:
    """Copy the catalog in the database FROM to the empty database TO; both are URLs.

    The copy is one transaction: every row, the same registry's id, the same log. Rows and log are compared before it is
    committed. Nobody can write to FROM meanwhile. Afterwards use one of the two alone: each takes the arrays that only
    the other knows for garbage.
    """
    from registry.maintenance.catalog_schema import copy as copy_catalog

    copied = copy_catalog(source, target, session.home)
    if as_json:
        print_json(copied)
        return
    rows = count(sum(copied.rows.values()), "row")
    done(
        copied.target,
        f"copied {rows} and {count(copied.events, 'event')} to {copied.target}",
        "  use this one from now on, and keep the other as a backup only: two catalogs with the same arrays would each",
        "  delete what only the other knows",
    )
    next_step(f"export REG_DATABASE={shlex.quote(copied.target)}; reg verify")
