"""reg lam-curve."""

from typing import Any

import click

from cli.next_steps import composing_as_typed
from cli.option_groups import GroupedCommand, typed_words
from cli.output import as_json, next_step, print_json, print_table
from cli.recipe import STATISTICS, asked, experts_option, recipe_options
from cli.session import Session, pass_session

_DEFAULTS = {"router": "ridge"}


@click.command(cls=GroupedCommand, examples=("reg lam-curve --experts code,math",))
@experts_option
@recipe_options(*STATISTICS, **_DEFAULTS)
@click.option("--base", metavar="NAME[@V]", help="The base model, for recipes that need one.")
@as_json
@pass_session
@click.pass_context
def lam_curve(
    context: click.Context,
    session: Session,
    /,
    experts: tuple[str, ...],
    base: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Print held-out error and accuracy of routers for various ridge strengths, layer by layer.

    Each member's statistics are kept in folds; routers solved from all folds but one are tested on that one, from
    statistics alone. Held-out error: squared error per token; 0 is perfect, 1 is a router of zeros. Accuracy: the share
    of tokens predicted to go to their own expert. A star marks the choice of --lam auto.
    """
    wanted = asked(context, session, experts, base, settings, _DEFAULTS)
    with session.registry() as registry:
        curves = registry.lam_curve(wanted.experts, wanted.mixture, base=wanted.base)
    if as_json:
        print_json([{"layer": layer, **curve.document()} for layer, curve in enumerate(curves)])
        return
    print_table(
        ("layer", "lam", "held-out error", "accuracy", ""),
        [
            (str(layer), f"{lam:g}", f"{error:.5f}", f"{accuracy:.4f}", "*" if lam == curve.best else "")
            for layer, curve in enumerate(curves)
            for lam, error, accuracy in zip(curve.lams, curve.errors, curve.accuracies, strict=True)
        ],
    )
    words = typed_words(context)
    defaults = {"--router": "ridge", "--lam": "auto"}
    unsaid = [word for option, value in defaults.items() if option not in words for word in (option, value)]
    next_step(composing_as_typed(context, *unsaid))
