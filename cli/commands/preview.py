"""reg preview."""

from typing import TYPE_CHECKING, Any

import click

from cli.recipe import asked, experts_option, recipe_options
from cli.session import Session, as_json, note, pass_session, print_json, print_table

if TYPE_CHECKING:
    from registry.composition.preview import Preview

_WITHOUT = ("to", "routing", "routing_tokens", "bias", "device", "dtype", "host", "remote_code")


@click.command()
@experts_option
@recipe_options(*_WITHOUT)
@click.option("--base", metavar="NAME[@V]", help="The base model, with a recipe that needs it.")
@as_json
@pass_session
@click.pass_context
def preview(
    context: click.Context,
    session: Session,
    /,
    experts: tuple[str, ...],
    base: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Print what a composition's routers will do, from statistics alone: no weight is read, nothing is written.

    Tokens that each expert brings and its part in the routers' solve; the share of its text that will go to it first
    (routing accuracy, as reg evaluate counts it), and who gets the rest; how far its text overlaps with each other's;
    and whether it is drowned out.
    """
    wanted = asked(context, session, experts, base, settings)
    with session.registry() as registry:
        found = registry.preview(wanted.experts, wanted.mixture, base=wanted.base)
    if as_json:
        print_json(found.document())
        return
    _print(found)


def _print(found: "Preview") -> None:
    refs, mean = found.refs, found.mean_confusion
    print_table(
        ("expert", "tokens", "part in the solve", "routing accuracy", "load"),
        [(m.ref, f"{m.tokens:,}", f"{m.part:.1%}", f"{m.accuracy:.1%}", f"{m.share:.1%}") for m in found.members],
    )
    click.echo()
    print_table(
        ("text of ↓ goes to →", *refs),
        [(ref, *(f"{share:.1%}" for share in row)) for ref, row in zip(refs, mean, strict=True)],
    )
    click.echo()
    print_table(
        ("accuracy in layer", *map(str, found.layers)),
        [(ref, *(f"{layer[n][n]:.1%}" for layer in found.confusion)) for n, ref in enumerate(refs)],
    )
    if found.overlap:
        click.echo()
        pairs = sorted(found.overlap.items(), key=lambda item: -item[1])
        print_table(("overlap", "", ""), [(a, b, f"{share:.1%}") for (a, b), share in pairs])
    for member in found.members:
        if member.drowned:
            click.echo(f"{member.ref} is drowned out: {member.drowned}")
    for a, b in found.indistinct:
        click.echo(f"{a} and {b}: routers will hardly tell their tokens apart, and less than is foretold here")
    for text in found.notes:
        note(text)
