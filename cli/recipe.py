"""The options that make a recipe, for every command that composes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.options import DTYPES, Choice, Integer, unique_pairs
from cli.session import Session, split
from registry.errors import RegError

if TYPE_CHECKING:
    from registry.composition import EnsembleRecipe, Recipe

Command = TypeVar("Command", bound=Callable[..., Any])


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


_OPTIONS = (
    click.option(
        "--to",
        type=Choice(["moe", "dense", "ensemble"]),
        metavar="OUTPUT",
        default="moe",
        show_default=True,
        help="What to make: moe, a sparse mixture; dense, one model whose MLPs are combined as the trunk is; "
        "ensemble, all members whole, their predictions mixed (loads with trust_remote_code=True).",
    ),
    click.option(
        "--routing",
        type=Choice(["posterior", "perplexity", "task-vector"]),
        metavar="METHOD",
        default="posterior",
        show_default=True,
        help="Of an ensemble: posterior, perplexity or task-vector.",
    ),
    click.option(
        "--routing-tokens",
        type=Integer(2),
        metavar="N",
        default=32,
        show_default=True,
        help="Of task-vector: how many first tokens decide.",
    ),
    click.option(
        "--trunk",
        type=Choice(["regmean", "mean", "base", "ties", "dare", "task-arithmetic"]),
        metavar="METHOD",
        default="regmean",
        show_default=True,
        help="Trunk method: regmean, mean, base, ties, dare or task-arithmetic.",
    ),
    click.option("--alpha", type=float, metavar="X", help="Of regmean: the share of off-diagonals. [default: 1]"),
    click.option(
        "--density", type=float, metavar="X", help="Of ties and dare: the share of entries that stay. [default: 0.8]"
    ),
    click.option(
        "--scale",
        type=float,
        metavar="X",
        help="Of ties, dare and task-arithmetic: what the merged task vector is multiplied by. [default: 1; 1; 0.3]",
    ),
    click.option(
        "--router",
        type=Choice(["ridge", "domain-embedding", "random"]),
        metavar="METHOD",
        default="ridge",
        show_default=True,
        help="Router method: ridge, domain-embedding or random.",
    ),
    click.option(
        "--lam",
        metavar="X|auto",
        default="0.01",
        show_default=True,
        help="Ridge strength; auto: for each layer the one of least held-out error, from statistics alone.",
        callback=_lam,
    ),
    click.option(
        "--normalize/--no-normalize",
        default=False,
        show_default=True,
        help="Give router columns unit length, as the DUME paper does, or leave them as they are solved.",
    ),
    click.option(
        "--bias",
        multiple=True,
        metavar="A=B,…",
        help="Of domain-embedding: what is added to a member's logits, as far as routers can. [default: 0]",
        callback=_numbers("bias"),
    ),
    click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Of random."),
    click.option(
        "--token-weight",
        type=Choice(["none", "advantage"]),
        metavar="HOW",
        default="none",
        show_default=True,
        help="none, or advantage: weigh kept calibration tokens by what the expert gains on them over the base model.",
    ),
    click.option(
        "--refine",
        type=Integer(0),
        metavar="N",
        default=0,
        show_default=True,
        help="Passes of the kept calibration tokens through the composed model, from which the routers are solved.",
    ),
    click.option(
        "--refine-mlp",
        is_flag=True,
        help="Refit the trunk's linear maps and each expert's down projection on the same tokens.",
    ),
    click.option("--device", metavar="DEVICE", help="A torch device for passes. [default: the GPU if there is one]"),
    click.option(
        "--top-k", type=Integer(1), metavar="N", help="Experts per token. [default: 2; of an ensemble all members]"
    ),
    click.option(
        "--temperature", type=float, metavar="X", help="Divides the router logits. [default: 0.05; of an ensemble 1]"
    ),
    click.option(
        "--weights",
        multiple=True,
        metavar="A=W,…",
        help="Members' weights in every sum over them. [default: 1]",
        callback=_numbers("weight"),
    ),
    click.option(
        "--balance",
        type=Choice(["none", "tokens"]),
        metavar="HOW",
        default="none",
        show_default=True,
        help="none, or tokens: divide each member's statistics by its share of the tokens.",
    ),
    click.option(
        "--dtype",
        type=DTYPES,
        metavar="DTYPE",
        help="bfloat16, float16 or float32: what the folder is written in. [default: the members' own]",
    ),
    click.option(
        "--host",
        metavar="HOST",
        help="What carries it, where more than one does: a model type, or remote-code. [default: the preferred one]",
    ),
    click.option(
        "--remote-code",
        is_flag=True,
        help="Write a modelling file into the folder, which carries any family; it loads with trust_remote_code=True.",
    ),
)
_OF_ENSEMBLES = {"routing", "routing_tokens"}
_OF_ALL = {"to", "top_k", "temperature", "weights", "dtype"}
_OF_TRUNKS = {"to", "trunk", "alpha", "density", "scale", "weights", "balance", "dtype"}
_OF_ROUTERS = ("lam", "normalize", "bias", "seed")
_TRUNK_OPTIONS = ("alpha", "density", "scale")
STATISTICS = ("to", "routing", "routing_tokens", "lam", "bias", "seed", "top_k", "temperature", "dtype", "host",
              "remote_code")  # fmt: skip
"""Options that have no part in what a router is solved from."""


def recipe_options(*without: str) -> Callable[[Command], Command]:
    """Add every option of a recipe but some, by parameter name; `recipe_of` makes one of their values."""

    def add(command: Command) -> Command:
        marked = click.command()(lambda: None)
        for option in reversed(_OPTIONS):
            marked.params.clear()
            option(marked)
            if marked.params[0].name not in without:
                command = option(command)
        return command

    return add


def check_members(session: Session, refs: Sequence[str]) -> None:
    """Refuse experts that cannot be composed, before anything is imported that takes seconds.

    Where there is no registry nothing is said yet: options that make no sense are told before that.

    Raises:
        RegError: there is no such expert, it was opted out, or the catalog is another registry's.
    """
    from store.ownership import check_owner

    with ExitStack() as stack:
        try:
            registry = stack.enter_context(session.registry())
        except RegError:
            return
        check_owner(registry.catalog, registry.arrays)
        for ref in refs:
            registry.resolve(ref, kind="expert")


def recipe_of(context: click.Context, **settings: Any) -> "Recipe | EnsembleRecipe":
    """Return the recipe that the options say; those that the command does not have stay at their defaults.

    Raises:
        click.UsageError: an option was given that has no part in what is made.
    """
    from registry.composition import EnsembleRecipe, Recipe
    from registry.maths.router import ROUTERS

    to, router = settings.get("to", "moe"), settings.get("router", "ridge")
    parts = {"ensemble": _OF_ENSEMBLES | _OF_ALL, "dense": _OF_TRUNKS}.get(to, {*settings} - _OF_ENSEMBLES)
    for name in sorted({*settings} - parts):
        if _is_given(context, name):
            raise click.UsageError(f"--{name.replace('_', '-')} has no part in what --to {to} makes.")
    for name in sorted({*_OF_ROUTERS} & parts - ROUTERS[router].options):
        if _is_given(context, name):
            raise click.UsageError(f"--{name} has no part in --router {router}.")
    if (to, settings["trunk"]) == ("dense", "base"):
        raise click.UsageError("--to dense --trunk base is the base model itself: choose another --trunk.")
    if settings.get("temperature") is None:
        settings.pop("temperature", None)  # each kind has a default of its own
    if to == "ensemble":
        return EnsembleRecipe(**{name: settings[name] for name in (parts - {"to"}) & {*settings}})
    host, top_k = settings.pop("host", None), settings.pop("top_k", None)
    if settings.pop("remote_code", False):
        if host is not None:
            raise click.UsageError("--host and --remote-code exclude one another.")
        host = "remote-code"
    options = {name: settings.pop(name) for name in _TRUNK_OPTIONS}
    return Recipe(
        top_k=top_k,
        trunk_options={name: value for name, value in options.items() if value is not None},
        host=host,
        **{name: value for name, value in settings.items() if name not in _OF_ENSEMBLES},
    )


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
