"""reg db."""

import click

from cli.session import Session, as_json, done, pass_session, print_json


@click.group()
def db() -> None:
    """The catalog's schema."""


@db.command()
@as_json
@pass_session
def current(session: Session, as_json: bool) -> None:
    """Print the revision that the catalog has and the one that this program works with."""
    from registry.maintenance.schema import revisions

    found, head = revisions(session.home, session.database)
    if as_json:
        print_json({"current": found, "head": head})
    else:
        click.echo(f"{found or 'no catalog yet'} (this program works with {head})")


@db.command()
@as_json
@pass_session
def upgrade(session: Session, as_json: bool) -> None:
    """Bring the catalog to the revision that this program works with, creating it where there is none.

    It is done whole or not at all: interrupted, repeat it. An older catalog in SQLite is first copied to a file beside
    it, whose name has its revision and the time; to go back, put that in its place. Keep it no longer than needed:
    opting out with --purge deletes such copies. Any other database is yours to back up.
    """
    from registry.maintenance.schema import upgrade as upgrade_catalog

    upgraded = upgrade_catalog(session.home, session.database)
    if as_json:
        print_json(upgraded)
        return
    changed = upgraded.before != upgraded.after
    lines = [f"the catalog is at {upgraded.after}" + (f" (was at {upgraded.before or 'nothing'})" if changed else "")]
    if upgraded.backup is not None:
        lines.append(f"  as it was: {upgraded.backup}")
    elif changed and upgraded.before is not None:
        lines.append("  no copy was made: only catalogs in SQLite files are copied")
    done(upgraded.after, *lines)
