"""reg db."""

import click

from cli.session import Session, as_json, pass_session, print_json


@click.group()
def db() -> None:
    """The catalog's schema."""


@db.command()
@as_json
@pass_session
def current(session: Session, as_json: bool) -> None:
    """Print the revision that the catalog has and the one that this program works with."""
    from registry.database import revisions

    found, head = revisions(session.home, session.database)
    if as_json:
        print_json({"current": found, "head": head})
    else:
        click.echo(f"{found or 'no catalog yet'} (this program works with {head})")


@db.command()
@as_json
@pass_session
def upgrade(session: Session, as_json: bool) -> None:
    """Bring the catalog to the revision that this program works with, creating it where there is none."""
    from registry.database import upgrade as upgrade_catalog

    before, after = upgrade_catalog(session.home, session.database)
    if as_json:
        print_json({"before": before, "after": after})
    else:
        click.echo(f"the catalog is at {after}" + (f" (was at {before or 'nothing'})" if before != after else ""))
