"""reg preview."""

from typing import TYPE_CHECKING, Any

import click

from cli.next_steps import composing_as_typed
from cli.option_groups import GroupedCommand
from cli.output import as_json, next_step, note, print_json, print_line, print_table
from cli.recipe import asked, experts_option, recipe_options
from cli.session import Session, pass_session

if TYPE_CHECKING:
    from registry.methods.moe.preview import Preview

_WITHOUT = ("to", "routing", "routing_tokens", "mixing", "lead", "bias", "gating", "device", "dtype", "host",
            "remote_code")  # fmt: skip


@click.command(
    cls=GroupedCommand,
    examples=("reg preview --experts code,math", "reg preview --experts code,math,law --router ridge"),
)
@experts_option
@recipe_options(*_WITHOUT)
@click.option("--base", metavar="NAME[@V]", help="The base model, for recipes that need one.")
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
    """Predict the routing of a composition from statistics alone: no weights are read, nothing is written.

    For each expert: its tokens and its weight in the routers' solve; the share of its text whose first choice is this
    expert (routing accuracy, as in reg evaluate) and the shares of the other experts; the overlap of its text with
    theirs; and whether it is drowned out. With --router context, all of it from counts of tokens, after 32 tokens of a
    text, and the accuracy after 1, 2, 4, … tokens.
    """
    wanted = asked(context, session, experts, base, settings)
    with session.registry() as registry:
        prediction = registry.preview(wanted.experts, wanted.mixture, base=wanted.base)
    if as_json:
        print_json(prediction.document())
        return
    _print(prediction)
    next_step(composing_as_typed(context))


def _print(prediction: "Preview") -> None:
    refs, mean, by_tokens = prediction.refs, prediction.mean_confusion, prediction.by_tokens
    solved = [] if by_tokens else ["weight in the solve"]  # context routing solves nothing
    print_table(
        ("expert", "tokens", *solved, "routing accuracy", "load"),
        [
            (m.ref, f"{m.tokens:,}", *(f"{m.part:.1%}" for _ in solved), f"{m.accuracy:.1%}", f"{m.share:.1%}")
            for m in prediction.members
        ],
    )
    click.echo()
    print_table(
        ("text of ↓ goes to →", *refs),
        [(ref, *(f"{share:.1%}" for share in row)) for ref, row in zip(refs, mean, strict=True)],
    )
    click.echo()
    if by_tokens:
        print_table(
            ("accuracy after … tokens", *(str(length.tokens) for length in by_tokens)),
            [(ref, *(f"{length.confusion[n][n]:.1%}" for length in by_tokens)) for n, ref in enumerate(refs)],
        )
    else:
        print_table(
            ("accuracy in layer", *map(str, prediction.layers)),
            [(ref, *(f"{layer[n][n]:.1%}" for layer in prediction.confusion)) for n, ref in enumerate(refs)],
        )
    if prediction.overlap:
        click.echo()
        pairs = sorted(prediction.overlap.items(), key=lambda item: -item[1])
        name = "overlap of token counts" if prediction.by_tokens else "overlap of activations"
        print_table((name, "", ""), [(a, b, f"{share:.1%}") for (a, b), share in pairs])
    for member in prediction.members:
        if member.drowned:
            print_line(f"{member.ref} is drowned out: {member.drowned}")
    for a, b in prediction.indistinct:
        print_line(f"{a} and {b}: routers can hardly separate their tokens, and less well than predicted here")
    for text in prediction.notes:
        note(text)
