"""reg compositions."""

import click

from cli.session import Session, as_json, pass_session, print_json, print_table


@click.command()
@click.argument("ref", required=False, metavar="[NAME[@V]]")
@as_json
@pass_session
def compositions(session: Session, ref: str | None, as_json: bool) -> None:
    """List the compositions that were made, all or those made from NAME."""
    with session.registry() as registry:
        found = registry.compositions(ref)
    if as_json:
        print_json(found)
        return
    print_table(
        ("composition", "made", "members", "trunk", "top-k"),
        [
            (
                composition.digest[:12],
                composition.created_at[:19],
                ",".join(composition.members),
                composition.document["recipe"]["trunk"],
                str(composition.document["recipe"]["top_k"]),
            )
            for composition in found
        ],
    )
