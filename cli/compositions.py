"""reg compositions."""

import click

from cli.registered import members_and_base
from cli.session import Session, as_json, pass_session, print_json, print_table


@click.command()
@click.argument("ref", required=False, metavar="[NAME[@V]|DIGEST]")
@as_json
@pass_session
def compositions(session: Session, ref: str | None, as_json: bool) -> None:
    """List the compositions that were made, all or those made from NAME.

    DIGEST is that of one composition, or its first digits, 6 or more.
    """
    with session.registry() as registry:
        found = registry.compositions(ref)
    if as_json:
        print_json(found)
        return
    print_table(
        ("composition", "made", "members", "base", "trunk", "top-k"),
        [
            (
                composition.digest[:12],
                composition.created_at[:19],
                *members_and_base(composition),
                composition.document["recipe"]["trunk"],
                str(composition.document["recipe"]["top_k"]),
            )
            for composition in found
        ],
    )
