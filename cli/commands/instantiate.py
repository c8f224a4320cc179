"""reg instantiate."""

from pathlib import Path
from typing import Any

import click

from cli.commands.compose import plan_document
from cli.fit_options import fit_line, fit_options, take_fit_settings
from cli.next_steps import evaluating
from cli.option_groups import INSTANTIATION, command
from cli.options import destination, files, flag, numbers, option
from cli.output import done, next_step, printed_json, short
from cli.session import Session, pass_session


@command(
    "reg instantiate mix --weights code=3,math=1 --out mostly-code/",
    "reg instantiate mix --like math.jsonl --out like-math/",
    "reg instantiate mix --fit math.jsonl --out fitted/",
    headings=INSTANTIATION,
)
@click.argument("soup")
@option("--out", "DIR|URL", "The folder to write, or a prefix of a bucket.", required=True, type=destination)
@option(
    "--weights", "A=X,…", "Weights of the domains; others have 0.", multiple=True, callback=numbers("weight", "DOMAIN")
)
@files("--like", "Weigh the domains by how many documents of FILE are nearest to each (repeatable).")
@fit_options("Fit the coefficients of the experts to the text of FILE by gradient, without domain weights")
@flag("--force", "Replace DIR if it is an earlier composition.")
@pass_session
@click.pass_context
def instantiate(
    context: click.Context,
    session: Session,
    /,
    soup: str,
    out: Path | str,
    weights: dict[str, float],
    fit: tuple[Path, ...],
    **settings: Any,
) -> None:
    """Write the dense model of SOUP for some mix of its domains, in seconds and without training.

    The domains' weights are given, or taken from documents; or the experts' coefficients are fitted to text. A soup of
    which a version was opted out is refused: all of it was trained together.
    """
    from registry import FitSettings

    fit_settings = FitSettings(**take_fit_settings(context, settings, fit))
    with session.registry() as registry:
        found = registry.instantiate(soup, out, weights=weights or None, fit=fit, settings=fit_settings, **settings)
    document = plan_document(found.plan) | {"out": out, "pushed": None}
    if printed_json(document | {"domain_weights": found.domain_weights, "coefficients": found.coefficients}):
        return
    shares = ", ".join(f"{name} {share:.4g}" for name, share in found.domain_weights.items())
    alpha = ", ".join(f"{name} {value:.4g}" for name, value in found.coefficients.items())
    done(
        found.plan.digest,
        f"instantiated {soup} into {out}  {short(found.plan.digest)}",
        *([f"  domains: {shares}"] if shares else []),
        f"  coefficients: {alpha}",
        *([f"  {fit_line(found.plan.recipe)}"] if fit else []),
    )
    next_step(evaluating([out], [name for name, share in found.domain_weights.items() if share]))
