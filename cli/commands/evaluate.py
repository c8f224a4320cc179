"""reg evaluate."""

from pathlib import Path
from typing import Any, Literal

import click

from cli.cluster import cluster_options, connected
from cli.next_steps import composing, reporting
from cli.opted_out import warn_of_opted_out
from cli.option_groups import EVALUATION, GroupedCommand
from cli.options import Integer, advanced, file_path, pairs, split
from cli.output import next_step, print_json
from cli.places import composed_place
from cli.recipe import asked, check_members
from cli.score_tables import forms, print_csv, print_tables, ranking_of, tables_of, test_text, wide_table
from cli.session import Session, pass_session
from registry.composition.recipe.fields import FIELDS
from registry.composition.recipe.option import OptionKind
from registry.evaluation.methods import named_methods
from registry.io.model_folder import MARKER

_SWITCHED = {"true": True, "yes": True, "false": False, "no": False}


def _counts(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | Literal["all"]:
    """Return the numbers of a list such as `1,2,4`, or `all`."""
    if text == "all":
        return "all"
    parts = split([text or ""])
    if any(not (part.isascii() and part.isdigit() and len(part) < 10 and int(part)) for part in parts):
        raise click.BadParameter(f"{text!r} is not all, nor a list of numbers from 1 such as 1,2,4")
    return [int(part) for part in parts]


def _sweep(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return field → values of `FIELD=V1,V2`; the registry checks them."""
    swept = {}
    for key, listed in pairs(texts, "FIELD=V1,V2,…"):
        name = key.strip().replace("-", "_")
        if name in swept:
            raise click.BadParameter(f"{key} is given twice: list its values, as in {key}=V1,V2")
        swept[name] = [_value(name, text) for text in split([listed])]
    return swept


def _value(name: str, text: str) -> Any:
    one = FIELDS.get(name)
    kind = one.kind if one else OptionKind.TEXT
    try:
        if kind is OptionKind.WHOLE:
            return int(text)
        if kind is OptionKind.NUMBER:
            return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a value of {name}, which is {kind.value}") from None
    return _SWITCHED.get(text.lower(), text) if kind is OptionKind.SWITCH else text


@click.command(
    cls=GroupedCommand,
    headings=EVALUATION,
    examples=(
        "reg evaluate moe/ --data code=code.test.jsonl --data math=math.test.jsonl",
        "reg evaluate moe/ --data code=code.test.jsonl --baselines --oracle",
        "reg evaluate --experts code,math --sweep top_k=1,2 --data code=code.test.jsonl",
    ),
)
@click.argument("folders", metavar="[FOLDER…]", nargs=-1, type=composed_place)
@test_text
@click.option(
    "--baselines", is_flag=True, help="Add rows for the base model, the experts, and a model of their averaged weights."
)
@click.option(
    "--oracle",
    is_flag=True,
    help="Add a row for every mixture with each domain's tokens sent to its own expert: the upper bound.",
)
@advanced(
    "--speed",
    is_flag=True,
    help="Add every mixture's time per token, relative to a dense expert measured alternately.",
)
@click.option(
    "--experts",
    multiple=True,
    metavar="A,B@2,…",
    help="Compose these experts too, with each of --methods and for each value of --sweep.",
)
@click.option(
    "--methods",
    multiple=True,
    metavar="all|NAME,…",
    help="Methods that compose --experts; each composition is scored, then deleted.",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="FIELD=V1,V2,…",
    callback=_sweep,
    help="Compose --experts once for each value of one field of a recipe, such as lam, top_k, temperature, scale.",
)
@click.option(
    "--recipe",
    "recipe_path",
    type=file_path,
    metavar="FILE",
    help="With --sweep: experts, base model and the recipe to change, from a YAML file or a composition.json. "
    "[default: the default recipe]",
)
@click.option(
    "--base",
    metavar="NAME[@V]",
    help="The base model of --methods and --sweep. [default: the only one registered]",
)
@advanced(
    "--seeds",
    type=Integer(1),
    metavar="N",
    help="Seeds of random methods, shown as mean ± standard deviation. [default: 5; 3 where routers are trained]",
)
@advanced(
    "--active-experts",
    metavar="all|N,…",
    callback=_counts,
    help="Add a row for every folder and each of these numbers of experts per token.",
)
@cluster_options
@forms
@pass_session
@click.pass_context
def evaluate(
    context: click.Context,
    session: Session,
    /,
    folders: tuple[Path, ...],
    data: dict[str, list[Path]],
    baselines: bool,
    oracle: bool,
    speed: bool,
    experts: tuple[str, ...],
    methods: tuple[str, ...],
    sweep: dict[str, list[Any]],
    recipe_path: Path | None,
    base: str | None,
    seeds: int | None,
    active_experts: list[int] | Literal["all"],
    ray: str | None,
    num_gpus: float | None,
    as_json: bool,
    as_markdown: bool,
    as_csv: bool,
    **settings: Any,
) -> None:
    """Print perplexities of model folders per domain, and the routing of mixtures.

    If a domain's own expert (the expert of the same name) is registered, the normalised score is printed too: 100 is
    that expert. For mixtures, routing accuracy is the share of a domain's tokens that go to its own expert, and load is
    each expert's share of all tokens; both are means over the layers. --json has every layer, and routing accuracy by
    number of tokens read.

    With --experts and --methods there is one row per method, and a ranking by mean score; methods with several seeds
    show mean ± standard deviation (the seed of the training where routers are trained, else that of the recipe).
    With --experts and --sweep there is one row per value of a field of a recipe, as in --sweep top_k=1,2,4.
    With --active-experts, the same folder is scored with other numbers of experts per token (FlexOlmo, Fig. 3); it is
    not changed.
    Scores of a composition made here are stored with it: reg show DIGEST.
    """
    if recipe_path is not None and not sweep:
        raise click.UsageError("--recipe goes with --sweep; to compose by it: reg compose --recipe FILE --out DIR")
    if not folders and not experts and recipe_path is None:
        raise click.UsageError("give a FOLDER, or --experts and --methods")
    if sweep and not experts and recipe_path is None:
        raise click.UsageError(
            "--sweep composes experts once for each value, and changes no FOLDER: name the experts with --experts A,B "
            "or --recipe FILE."
        )
    if recipe_path is None and bool(experts) != bool(methods or sweep):
        raise click.UsageError("--experts and --methods go together; so do --experts and --sweep.")
    if active_experts and not folders:
        raise click.UsageError("--active-experts needs a FOLDER.")
    if seeds is not None and not methods:
        raise click.UsageError("--seeds goes with --methods.")
    named_methods(split(methods))
    refs, recipe = split(experts), None
    if recipe_path is not None:
        wanted = asked(context, session, experts, base, {"recipe_path": recipe_path, "to": None})
        refs, recipe, base = wanted.experts, wanted.recipe, wanted.base
    elif experts:
        check_members(session, refs)
    from registry import TestSettings

    with connected(ray, num_gpus) as cluster, session.registry(create=True, cluster=cluster) as registry:
        warn_of_opted_out(registry, folders)
        rows = registry.evaluate(
            folders,
            data,
            TestSettings(**settings),
            baselines=baselines,
            oracle=oracle,
            speed=speed,
            experts=refs,
            methods=split(methods),
            base=base,
            seeds=seeds,
            active_experts=active_experts,
            recipe=recipe,
            sweep=sweep,
        )
    if as_json:
        print_json([row.document() for row in rows])
    elif as_csv:
        print_csv(wide_table(rows, list(data)))
    else:
        ranking = ranking_of(rows) if methods or sweep or len(folders) > 1 else []
        print_tables([*tables_of(rows, list(data)), *ranking], as_markdown=as_markdown)
    composed = [folder for folder in folders if (folder / MARKER).is_file()]
    if composed and not (as_csv or as_markdown):
        next_step(reporting(composed[0]))
    elif refs and not (as_csv or as_markdown):
        next_step(composing(refs, *(["--base", base] if base else [])))
