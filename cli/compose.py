"""reg compose."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import DTYPES, Integer, file_path, unique_pairs
from cli.session import Session, as_json, pass_session, print_json, print_table, size, split

if TYPE_CHECKING:
    from registry import Plan


_NOT_SHOWN = ("weights", "dtype")


def _numbers(what: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, float]]:
    def read(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
        numbers = {}
        for name, value in unique_pairs(f"NAME={what.upper()}")(context, option, tuple(split(texts))).items():
            try:
                numbers[name] = float(value)
            except ValueError:
                raise click.BadParameter(f"the {what} of {name} is {value!r}, not a number") from None
        return numbers

    return read


def _lam(_context: click.Context, _option: click.Parameter, text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number nor auto") from None


@click.command()
@click.option("--experts", multiple=True, required=True, metavar="A,B@2,…", help="The members, in any order.")
@click.option("--out", type=file_path, metavar="DIR", help="The folder to write; it appears whole or not at all.")
@click.option(
    "--to",
    type=click.Choice(["moe", "dense"]),
    metavar="OUTPUT",
    default="moe",
    show_default=True,
    help="What to make: moe, a sparse mixture, or dense, one model whose MLPs are combined as the trunk is.",
)
@click.option(
    "--trunk",
    type=click.Choice(["regmean", "mean", "base", "ties", "dare", "task-arithmetic"]),
    metavar="METHOD",
    default="regmean",
    show_default=True,
    help="Trunk method: regmean, mean, base, ties, dare or task-arithmetic.",
)
@click.option("--alpha", type=float, metavar="X", help="Of regmean: how much of each Gram's off-diagonal. [default: 1]")
@click.option(
    "--density", type=float, metavar="X", help="Of ties and dare: the share of entries that stay. [default: 0.8]"
)
@click.option(
    "--scale",
    type=float,
    metavar="X",
    help="Of ties, dare and task-arithmetic: what the merged task vector is multiplied by. [default: 1; 1; 0.3]",
)
@click.option(
    "--base",
    metavar="NAME[@V]",
    help="The base model, with a trunk method that needs it: base, ties, dare, task-arithmetic. "
    "[default: the only one registered]",
)
@click.option(
    "--router",
    type=click.Choice(["ridge", "domain-embedding", "random"]),
    metavar="METHOD",
    default="ridge",
    show_default=True,
    help="Router method: ridge, domain-embedding or random.",
)
@click.option(
    "--lam",
    metavar="X|auto",
    default="0.01",
    show_default=True,
    help="Ridge strength; auto: for each layer the one of least held-out error, from statistics alone.",
    callback=_lam,
)
@click.option(
    "--normalize/--no-normalize", default=True, show_default=True, help="Give router columns unit length, or do not."
)
@click.option(
    "--bias",
    multiple=True,
    metavar="A=B,…",
    help="Of domain-embedding: what is added to a member's logits, as far as routers can. [default: 0]",
    callback=_numbers("bias"),
)
@click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Of random.")
@click.option(
    "--token-weight",
    type=click.Choice(["none", "advantage"]),
    metavar="HOW",
    default="none",
    show_default=True,
    help="none, or advantage: weigh kept calibration tokens by what the expert gains on them over the base model.",
)
@click.option(
    "--refine",
    type=Integer(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Passes of the kept calibration tokens through the composed model, from which the routers are solved.",
)
@click.option(
    "--refine-mlp",
    is_flag=True,
    help="Refit the trunk's linear maps and each expert's down projection to the composed trunk, on the same tokens.",
)
@click.option("--device", metavar="DEVICE", help="A torch device for those passes. [default: the GPU if there is one]")
@click.option("--top-k", type=Integer(1), metavar="N", default=1, show_default=True, help="Experts per token.")
@click.option(
    "--temperature", type=float, metavar="X", default=1.0, show_default=True, help="Divides the router logits."
)
@click.option(
    "--weights",
    multiple=True,
    metavar="A=W,…",
    help="Members' weights in every sum over them. [default: 1]",
    callback=_numbers("weight"),
)
@click.option(
    "--balance",
    type=click.Choice(["none", "tokens"]),
    metavar="HOW",
    default="none",
    show_default=True,
    help="none, or tokens: divide each member's statistics by its share of the tokens.",
)
@click.option(
    "--dtype",
    type=DTYPES,
    metavar="DTYPE",
    help="bfloat16, float16 or float32: what the folder is written in. [default: the members' own]",
)
@click.option(
    "--host",
    metavar="HOST",
    help="What carries it, where more than one does: a model type, or remote-code. [default: the preferred one]",
)
@click.option(
    "--remote-code",
    is_flag=True,
    help="Write a modelling file into the folder, which carries any family; it loads with trust_remote_code=True.",
)
@click.option("--plan", "plan_only", is_flag=True, help="Print what would be written, and stop.")
@click.option("--force", is_flag=True, help="Replace --out if it is an earlier composition.")
@as_json
@pass_session
def compose(
    session: Session,
    /,
    experts: tuple[str, ...],
    out: Path | None,
    base: str | None,
    weights: dict[str, float],
    alpha: float | None,
    density: float | None,
    scale: float | None,
    host: str | None,
    remote_code: bool,
    plan_only: bool,
    force: bool,
    as_json: bool,
    **recipe: Any,
) -> None:
    """Compose registered experts into one sparse mixture that plain transformers loads."""
    from registry import Recipe

    if out is None and not plan_only:
        raise click.UsageError("Missing option '--out' (or '--plan').")
    if remote_code and host is not None:
        raise click.UsageError("--host and --remote-code exclude one another.")
    options = {"alpha": alpha, "density": density, "scale": scale}
    chosen = Recipe(
        trunk_options={name: value for name, value in options.items() if value is not None},
        weights=weights,
        host="remote-code" if remote_code else host,
        **recipe,
    )
    with session.registry() as registry:
        if out is None or plan_only:
            plan = registry.plan(split(experts), chosen, base=base)
        else:
            plan = registry.compose(split(experts), out, chosen, base=base, force=force)
    if as_json:
        print_json(_document(plan) | {"out": None if plan_only else out})
    elif plan_only:
        _print_plan(plan)
    else:
        click.echo(f"composed {', '.join(m.version.ref for m in plan.members)} into {out}  {plan.digest}")
        for note in plan.translation.notes:
            click.echo(f"  note: {note}")
        click.echo(
            f"  {plan.host.model_type}, {plan.parameters:,} parameters, {plan.active_parameters:,} active per token"
        )


def _document(plan: "Plan") -> dict[str, Any]:
    return plan.document | {
        "digest": plan.digest,
        "versions": [member.version.ref for member in plan.members],
        "dtype": plan.dtype,
        "parameters": plan.parameters,
        "active_parameters": plan.active_parameters,
        "bytes": plan.nbytes,
        "peak_bytes": plan.peak_bytes,
    }


def _print_plan(plan: "Plan") -> None:
    recipe = plan.recipe.document(plan.names)
    weights = recipe["weights"]
    print_table(
        ("index", "expert", "digest", "weight", "tokens"),
        [
            (
                str(index),
                member.version.ref,
                member.version.digest[:12],
                f"{weights[member.version.name]:g}",
                f"{member.tokens:,}",
            )
            for index, member in enumerate(plan.members)
        ],
    )
    shown = [(key.replace("_", " "), str(value)) for key, value in recipe.items() if key not in _NOT_SHOWN]
    if plan.base:
        shown.append(("base", plan.base.version.ref))
    print_table(
        ("composition", plan.digest),
        [
            ("host", f"{plan.host.model_type}, {plan.dtype}"),
            *(("note", note) for note in plan.translation.notes),
            *shown,
            ("parameters", f"{plan.parameters:,}, of which {plan.active_parameters:,} active per token"),
            ("bytes", f"{plan.nbytes:,} ({size(plan.nbytes)})"),
            ("peak memory", f"about {size(plan.peak_bytes)} beyond the program itself"),
        ],
    )
