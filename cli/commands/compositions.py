"""reg compositions."""

from typing import Any

import click

from cli.option_groups import GroupedCommand
from cli.output import as_json, next_step, print_json, print_table, short
from cli.session import Session, pass_session
from cli.version_output import members_and_base


@click.command(cls=GroupedCommand, examples=("reg compositions", "reg compositions math"))
@click.argument("ref", required=False, metavar="[NAME[@V]|DIGEST]")
@as_json
@pass_session
def compositions(session: Session, ref: str | None, as_json: bool) -> None:
    """List all compositions, or those made from NAME.

    DIGEST is the digest of one composition, or its first 6 or more digits.
    """
    with session.registry() as registry:
        records = registry.compositions(ref)
    if as_json:
        print_json(records)
        return
    print_table(
        ("composition", "made", "members", "base", "trunk", "router", "top-k"),
        [
            (
                short(composition.digest),
                composition.created_at[:19],
                *members_and_base(composition),
                *_recipe(composition.document),
            )
            for composition in records
        ],
    )
    if records:
        next_step(["show", short(records[0].digest)])


def _recipe(document: dict[str, Any]) -> tuple[str, str, str]:
    """Return the kind and method of a composition, the settings of its router, and the experts per token."""
    recipe = document["recipe"]
    to = recipe.get("to", "moe")
    method = recipe.get("trunk") or recipe.get("routing") or ""
    labels = {
        recipe.get("router", ""): True,
        f"refine {recipe.get('refine')}": bool(recipe.get("refine")),
        "refit": recipe.get("refine_mlp", False),
        "trained": "training" in document,
    }
    router = ", ".join(text for text, holds in labels.items() if text and holds)
    return (method if to == "moe" else ", ".join(filter(None, (to, method)))), router, str(recipe.get("top_k", ""))
